"""Configuration of the policy."""

from dataclasses import dataclass, field
from typing import Any

from minefleet.config.field_validators import at_least, finite, one_of
from minefleet.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyConfig:
    """The policy: ours, sized here, or one that a generator makes."""

    generator: str = ""
    """`package.module:function` or `path/to/file.py:function` that makes a policy, called with `kwargs` by name.
    A parameter named `schema`, or annotated `Schema`, is given what the environment shows and takes. Empty for ours."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the generator. Relative paths under keys that end in `_path` are taken from where the
    configuration lies."""
    frozen_encoder: str = ""
    """A part of a generator's policy that is not trained, `backbone` or `encoder.vit`, whose outputs are stored in the
    place of the pictures that it reads, so that the learner does not compute it. Empty: pictures are stored."""
    hidden_size: int = 256
    """Features of the trunk, >= 1."""
    hidden_layers: int = 2
    """Dense layers for vector observations, >= 1."""
    conv_channels: list[int] = field(default_factory=lambda: [32, 64, 128])
    """Channels of the convolutions for pixels, one after the other, >= 1; `hidden_size` features follow."""
    conv_kernels: list[int] = field(default_factory=lambda: [8, 4, 3])
    """Height and width of their kernels, pixels, >= 1. Where a picture is made of tiles, a first kernel and stride as
    large as one see each tile whole. Pictures with both edges below 36 pixels are read as numbers all the same."""
    conv_strides: list[int] = field(default_factory=lambda: [4, 2, 2])
    """Their strides, pixels, >= 1."""
    activation: str = "tanh"
    """`tanh`, `relu` or `elu`."""
    gru_size: int = 0
    """Units of the GRU after the trunk; 0 for none."""
    separate_value_trunk: bool = False
    """Give the value function a trunk of its own (vector observations)."""
    initial_log_std: float = 0.0
    """Log standard deviation of continuous actions at the start."""
    normalize_obs: bool = False
    """Shift and scale each number in a float observation to mean 0 and standard deviation 1, and clip it to ±10. The
    statistics are those of all steps trained on so far; they travel with the weights and lie in checkpoints. Where an
    observation has no floats this changes nothing."""
    normalize_pixels: bool = False
    """The same for each channel of each image, over all of its pixels. Off, bytes are divided by 255. Where an
    observation has no images this changes nothing."""

    def __post_init__(self) -> None:
        """Rejects impossible values."""
        if self.kwargs and not self.generator:
            raise ConfigError(f"policy.kwargs are a generator's: give policy.generator, or leave out {self.kwargs}")
        if self.frozen_encoder and not self.generator:
            raise ConfigError("policy.frozen_encoder is a part of a generator's policy: give policy.generator")
        at_least("policy.hidden_size", self.hidden_size, 1)
        at_least("policy.hidden_layers", self.hidden_layers, 1)
        at_least("policy.gru_size", self.gru_size, 0)
        convolutions = (self.conv_channels, self.conv_kernels, self.conv_strides)
        if (
            len(set(map(len, convolutions))) > 1
            or min((size for sizes in convolutions for size in sizes), default=0) < 1
        ):
            raise ConfigError(
                "policy.conv_channels, conv_kernels and conv_strides must be lists of equally many numbers >= 1, got "
                f"{self.conv_channels}, {self.conv_kernels} and {self.conv_strides}"
            )
        finite("policy.initial_log_std", self.initial_log_std)
        one_of("policy.activation", self.activation, ("tanh", "relu", "elu"))
