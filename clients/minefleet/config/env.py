"""Configuration of the environment and its wrappers."""

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from minefleet.config.field_validators import above, at_least
from minefleet.core.errors import ConfigError
from minefleet_env.process_messages import TASK_BYTES


@dataclass(frozen=True, kw_only=True, slots=True)
class WrappersConfig:
    """Wrappers around each environment, from the inside out in the order of the keys."""

    time_limit: int = 0
    """Truncate episodes after so many steps of the environment, skipped ones included; 0 never. It only shortens: the
    limit of a registered environment is changed by `env.kwargs.max_episode_steps`."""
    frame_skip: int = 1
    """Repeat each action so many times, add up the rewards and show the last observation, >= 1. Returns are the same;
    lengths, `env_steps` and the discount count what the policy decides."""
    resize: list[int] = field(default_factory=list)
    """Resize all images to [height, width]; empty leaves them."""
    grey: bool = False
    """Make all images grey: [height, width, 1]."""
    frame_stack: int = 1
    """Show the last so many observations, >= 1: boxes are joined along their last axis, which are an image's channels,
    the oldest first; of the rest, masks included, the newest is shown. The first one stands for those before it."""
    action_mask: str = ""
    """Key of `info` that holds the mask of allowed actions, for environments that tell it there: it becomes part of the
    observation, as `action_mask`. Empty where there is none, or where the observation has it already."""
    action_chunk: int = 1
    """Decide for so many steps at once, >= 1: an action becomes so many along a new first axis, which are played one
    after the other until the episode ends. `train_config.discount` is of each step; lengths and `env_steps` count what
    the policy decides."""
    reward_scale: float = 1.0
    """Multiply rewards, before they are clipped, > 0. Training sees the change, reports do not: returns are
    sums of the environment's rewards."""
    reward_clip: float = 0.0
    """Clip rewards to [-reward_clip, reward_clip], likewise only what is trained on; 0 does not."""

    def __post_init__(self) -> None:
        """Rejects impossible values."""
        for key, minimum in (("time_limit", 0), ("reward_clip", 0)):
            at_least(f"env.wrappers.{key}", getattr(self, key), minimum)
        for key in ("frame_skip", "frame_stack", "action_chunk"):
            at_least(f"env.wrappers.{key}", getattr(self, key), 1)
        above("env.wrappers.reward_scale", self.reward_scale, 0)
        if self.resize and (len(self.resize) != 2 or min(self.resize) < 1):
            raise ConfigError(f"env.wrappers.resize must be [height, width], both >= 1, got {self.resize}")


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvConfig:
    """The environment and its wrappers."""

    id: str = ""
    """A Gymnasium id, for example `CartPole-v1`. Empty when `generator` is given."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment."""
    generator: str = ""
    """`package.module:function` or `path/to/file.py:function` that makes an environment. Empty when `id` is given."""
    python: str = ""
    """Interpreter of the environment processes: a path, or a command to be found; empty means the fleet's own. Besides
    what the environment needs, Python 3.8 or newer with NumPy 1.19 or newer is enough."""
    time_limit: Literal["truncated", "terminated"] = "truncated"
    """The end of an episode by a limit of time is: `truncated`, so that the value of the last observation stands for
    what would have come; or `terminated`, as if nothing would, which is what MineStudio trains on."""
    tasks: dict[str, float] = field(default_factory=dict)
    """Tasks by name, with weights > 0: each episode begins with `reset(options={"task": NAME})`. Empty where the
    environment chooses by itself."""
    task_sampling: Literal["weights", "success"] = "weights"
    """Draw tasks by their weights, or by `success`: tasks that are neither mastered nor hopeless come more often, as
    their episodes say in `info["metrics"]["success"]`."""
    batched: bool = False
    """The generator takes `num_envs` and makes a `gymnasium.vector.VectorEnv` of so many environments, for all slots of
    a process: for those of `envs_per_process`."""
    wrappers: WrappersConfig = field(default_factory=WrappersConfig)

    def __post_init__(self) -> None:
        """Rejects impossible values."""
        if self.id and self.generator:
            raise ConfigError(f"give env.id or env.generator, not both: got {self.id!r} and {self.generator!r}")
        for name, weight in self.tasks.items():
            above(f"env.tasks.{name}", weight, 0)
            if not 0 < len(name.encode()) <= TASK_BYTES:
                raise ConfigError(f"env.tasks: a name has 1 to {TASK_BYTES} bytes, got {name!r}")
        if self.batched:
            self._check_batched()

    def _check_batched(self) -> None:
        """Rejects what is for single environments."""
        if not self.generator:
            raise ConfigError(
                "env.batched needs env.generator: gymnasium:make_vec with env.kwargs={id: ...} makes a registered one"
            )
        if self.tasks:
            raise ConfigError("env.tasks cannot be had with env.batched: a batch resets its rows with the same options")
        for wrapper in fields(WrappersConfig):
            if not wrapper.name.startswith("reward_") and getattr(self.wrappers, wrapper.name) != getattr(
                WrappersConfig(), wrapper.name
            ):
                raise ConfigError(
                    f"env.wrappers.{wrapper.name} wraps single environments: with env.batched, wrap in env.generator, "
                    "by gymnasium.wrappers.vector"
                )
