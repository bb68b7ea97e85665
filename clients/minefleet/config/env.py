"""Which environment to play, and through what."""

from dataclasses import dataclass, field
from typing import Any

from minefleet.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class WrappersConfig:
    """Wrappers around each environment, from Gymnasium where it has them; applied in the order of the keys."""

    time_limit: int = 0
    """Truncate episodes after so many steps of the environment; 0 never."""
    frame_skip: int = 1
    """Repeat each action so many times and add up the rewards, >= 1."""
    grey: bool = False
    """Make pixels grey: [height, width, 1]."""
    resize: list[int] = field(default_factory=list)
    """Resize pixels to [height, width]; empty leaves them."""
    frame_stack: int = 1
    """Show the last so many frames, joined along the channels, >= 1."""
    reward_scale: float = 1.0
    """Multiply rewards, before they are clipped."""
    reward_clip: float = 0.0
    """Clip rewards to [-reward_clip, reward_clip]; 0 does not."""
    action_mask: str = ""
    """Key of `info` that holds the mask of allowed actions, for environments that tell it there: it becomes part of the
    observation, as `action_mask`. Empty where there is none, or where the observation has it already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvConfig:
    """Which environment to play."""

    id: str = ""
    """A Gymnasium id, for example `CartPole-v1`. Empty when `generator` is given."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment."""
    generator: str = ""
    """`package.module:function` or `path/to/file.py:function` that makes an environment. Empty when `id` is given."""
    python: str = ""
    """Interpreter of the environment processes; empty means the fleet's own."""
    wrappers: WrappersConfig = field(default_factory=WrappersConfig)

    def __post_init__(self) -> None:
        """Rejects impossible values."""
        if self.id and self.generator:
            raise ConfigError(f"give env.id or env.generator, not both: got {self.id!r} and {self.generator!r}")
