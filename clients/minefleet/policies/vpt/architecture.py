"""The sizes of a VPT network: of the published models, or as the keyword arguments in a `.model` file say."""

import math
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from types import MappingProxyType
from typing import Any

from minefleet.core.errors import ConfigError

BUTTONS = 8641
"""Categories of `buttons`: 10·3·3·3·2·2·2·2·2 combinations, and the inventory key alone."""
CAMERA = 121
"""Categories of `camera`: 11 × 11 bins of pitch and yaw."""

FIXED: Mapping[str, object] = MappingProxyType(
    {
        "recurrence_type": "transformer",
        "recurrence_is_residual": True,
        "attention_mask_style": "clipped_causal",
        "use_pointwise_layer": True,
        "pointwise_use_activation": False,
        "scale_input_img": True,
        "first_conv_norm": False,
        "img_statistics": None,
        "active_reward_monitors": None,
    }
)
"""Keyword arguments of OpenAI's `MinecraftPolicy` that all published models agree on, and what they are there."""
MAX_SIZES: Mapping[str, int] = MappingProxyType(
    {
        "hidden_size": 2**15,
        "heads": 2**10,
        "blocks": 2**8,
        "dense_size": 2**15,
        "memory": 2**14,
        "pointwise_ratio": 2**6,
    }
)
"""Far above any network that was trained; above it, a damaged file."""
MAX_IMAGE_SIDE = 2**11
EMPTY: tuple[object, ...] = (None, False, {}, ())


@dataclass(frozen=True, kw_only=True, slots=True)
class VPTArchitecture:
    """The shapes and the use of the weights.

    Baker et al. 2022, https://arxiv.org/abs/2206.11795, appendix D.1; `POLICY_KWARGS` of `agent.py` and
    `MinecraftPolicy` of `lib/policy.py` in OpenAI's Video-Pre-Training.
    """

    hidden_size: int
    """Features of the transformer."""
    heads: int
    """Attention heads, which part the features between them."""
    blocks: int = 4
    """Transformer blocks."""
    channels: tuple[int, int, int] = (16, 32, 32)
    """Channels of the three convolutional stacks."""
    dense_size: int = 256
    """Features of the dense layer after the convolutions."""
    image_shape: tuple[int, int, int] = (128, 128, 3)
    """Height, width and channels of what it sees."""
    memory: int = 128
    """Frames before the present chunk that it keeps; an observation attends to itself and `memory` - 1 before it."""
    pointwise_ratio: int = 4
    """Width of the layers between two attentions, over `hidden_size`."""
    norm_after_pool: bool = True
    """Normalise after the pooling of each stack."""
    norm_before_blocks: bool = False
    """Normalise before the transformer."""
    temperature: float = 2.0
    """Divides the logits."""

    def __post_init__(self) -> None:
        """Rejects what makes no network."""
        for name, largest in MAX_SIZES.items():
            if not 1 <= getattr(self, name) <= largest:
                raise ConfigError(f"a VPT network's {name} must be from 1 to {largest}, got {getattr(self, name)}")
        if self.hidden_size % self.heads:
            raise ConfigError(f"a VPT network's {self.heads} heads must divide its hidden_size, got {self.hidden_size}")
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise ConfigError(f"a VPT network's temperature must be > 0 and finite, got {self.temperature}")
        for name in ("channels", "image_shape"):
            sizes = getattr(self, name)
            if len(sizes) != 3 or min(sizes) < 1 or max(sizes) > MAX_IMAGE_SIDE:
                raise ConfigError(
                    f"a VPT network's {name} must be three numbers from 1 to {MAX_IMAGE_SIDE}, got {list(sizes)}"
                )

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "VPTArchitecture":
        """Inverts `to_dict`.

        Raises:
            ConfigError: If a field is unknown, missing, or of another type.
        """
        if missing := [field.name for field in fields(cls) if field.name not in data]:
            raise ConfigError(f"a VPT network's {', '.join(missing)} is missing")
        return changed(PRESETS["1x"], data)


def changed(architecture: VPTArchitecture, changes: Mapping[str, Any]) -> VPTArchitecture:
    """The same architecture but for some fields, as they come from a file or a configuration.

    Raises:
        ConfigError: If a field is unknown or of another type.
    """
    kinds = {field.name: type(getattr(architecture, field.name)) for field in fields(architecture)}
    values: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in kinds:
            raise ConfigError(f"a VPT network has no {name!r}, only {', '.join(kinds)}")
        values[name] = _as(kinds[name], name, value)
    return replace(architecture, **values)


def from_kwargs(net: Mapping[str, Any], pi_head: Mapping[str, Any]) -> VPTArchitecture:
    """Reads the keyword arguments of OpenAI's `MinecraftPolicy` and of its action head.

    Others than those that decide the network's shape are ignored, as they are there.

    Raises:
        ConfigError: If one is missing, or asks for a network that is not implemented; names it.
    """
    _refuse_others(net)
    norm = _section(net, "init_norm_kwargs")
    if norm.get("group_norm_groups") != 1 or norm.get("batch_norm", False):
        raise ConfigError(f"init_norm_kwargs must be group_norm_groups=1 without batch_norm, got {reprlib.repr(norm)}")
    pool = _section(net, "impala_kwargs")
    if pool.keys() - {"post_pool_groups"} or pool.get("post_pool_groups") not in (None, 1):
        raise ConfigError(f"impala_kwargs may have post_pool_groups=1 and no more, got {reprlib.repr(pool)}")
    try:
        return VPTArchitecture(
            hidden_size=int(net["hidsize"]),
            heads=int(net["attention_heads"]),
            blocks=int(net["n_recurrence_layers"]),
            channels=_three(float(net["impala_width"]) * count for count in net.get("impala_chans", (16, 32, 32))),
            image_shape=_three(net["img_shape"]),
            memory=int(net["attention_memory_size"]) - int(net["timesteps"]),
            pointwise_ratio=int(net.get("pointwise_ratio", 4)),
            norm_after_pool=pool.get("post_pool_groups") is not None,
            norm_before_blocks=bool(net.get("use_pre_lstm_ln", True)),
            temperature=float(pi_head.get("temperature", 1.0)),
        )
    except KeyError as error:
        raise ConfigError(f"the network's arguments lack {error.args[0]!r}") from error
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ConfigError(f"the network's arguments are none of VPT's: {error}") from error


def _refuse_others(net: Mapping[str, Any]) -> None:
    for key, published in FIXED.items():
        value = net.get(key, published)
        if value != published and not (published in EMPTY and value in EMPTY):
            raise ConfigError(f"{key} must be {published!r} as in all published VPT models, got {reprlib.repr(value)}")


def _section(net: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = net.get(key, {})
    if not isinstance(section, Mapping):
        raise ConfigError(f"{key} must be a dict, got {reprlib.repr(section)}")
    return section


def _as(kind: type, name: str, value: Any) -> Any:
    """A value as a field of some type holds it; a list stands for a tuple, and an integer for a float."""
    if kind is tuple and isinstance(value, list | tuple) and all(type(each) is int for each in value):
        return tuple(value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        wanted = "a list of integers" if kind is tuple else f"of type {kind.__name__}"
        raise ConfigError(f"a VPT network's {name} must be {wanted}, got {value!r}")
    return value


def _three(values: Any) -> tuple[int, int, int]:
    first, second, third = (int(value) for value in values)
    return first, second, third


def _sized(width: int) -> VPTArchitecture:
    return VPTArchitecture(hidden_size=256 * width, heads=2 * width, channels=(16 * width, 32 * width, 32 * width))


PRESETS: Mapping[str, VPTArchitecture] = MappingProxyType(
    {
        "1x": _sized(4),
        "2x": _sized(8),
        "3x": _sized(12),
        "tiny": VPTArchitecture(
            hidden_size=64, heads=4, blocks=2, channels=(4, 8, 8), dense_size=64, image_shape=(32, 32, 3)
        ),
    }
)
"""By size: the published ones, of which only 2x has its arguments in OpenAI's code, and one for tests."""
