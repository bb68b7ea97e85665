"""The file that describes a sweep.

    config: CartPole-v1
    set: [stop.env_steps=50_000]
    space:
      train_config.learning_rate: {low: 1e-5, high: 1e-2, log: true}
      train_config.entropy_bonus_coef: [0, 0.003, 0.01]
    trials: 12

A list has the values of a key; a range has its ends, for whole numbers where both are.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from minefleet.config import FleetConfig
from minefleet.config.field_validators import at_least
from minefleet.config.load import load
from minefleet.config.yaml_text import read_yaml
from minefleet.core.errors import ConfigError

GOALS = ("maximize", "minimize")
SAMPLERS = ("tpe", "random")
PRUNERS = ("median", "none")


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low` to `high`, both included; with `log` each order of magnitude is as likely as the next."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        """Rejects ranges without numbers."""
        if not all(type(end) in (int, float) and isfinite(end) for end in (self.low, self.high)):
            raise ConfigError(f"low and high must be numbers, got {self.low!r} and {self.high!r}")
        if not isinstance(self.log, bool):
            raise ConfigError(f"log must be true or false, got {self.log!r}")
        if not self.low < self.high:
            raise ConfigError(f"low must be below high, got {self.low} and {self.high}")
        if self.log and self.low <= 0:
            raise ConfigError(f"low must be > 0 with log, got {self.low}")

    @property
    def is_whole(self) -> bool:
        """Whether its numbers are whole."""
        return isinstance(self.low, int) and isinstance(self.high, int)


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepSpec:
    """A sweep's file."""

    space: Mapping[str, Range | Sequence[Any]]
    """By key of the configuration: a range, or the values to choose from."""
    config: str = ""
    """CONFIG, as `minefleet train` takes it."""
    set: Sequence[str] = field(default_factory=list)
    """`key=value` of all trials."""
    trials: int = 20
    """The number of trials, pruned ones included."""
    objective: str = "episode_return_mean"
    """The key of `metrics.jsonl` whose last value is a trial's result."""
    goal: Literal["maximize", "minimize"] = "maximize"
    sampler: str = "tpe"
    """`tpe` draws where results were good, `random` anywhere."""
    pruner: str = "median"
    """`median` stops a trial that is behind the median of the others at the same share of its budget."""
    seed: int = 0
    """Of the sampler; a trial's own is the key `seed`."""

    def __post_init__(self) -> None:
        """Rejects impossible values."""
        at_least("trials", self.trials, 1)
        at_least("seed", self.seed, 0)
        for name, value, known in (
            ("goal", self.goal, GOALS),
            ("sampler", self.sampler, SAMPLERS),
            ("pruner", self.pruner, PRUNERS),
        ):
            if value not in known:
                raise ConfigError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        if not self.space:
            raise ConfigError("space must have a key at least")

    def overrides(self, values: Mapping[str, Any]) -> list[str]:
        """The overrides of a trial with these values; those of the trial win."""
        return [*self.set, *(f"{key}={json.dumps(value)}" for key, value in values.items())]

    def check(self) -> None:
        """Tries the ends of each range and a value within, and each value of a list, beside the others' first ones.

        Raises:
            ConfigError: If a trial would be refused, or would never end.
        """
        tried = {key: _tried(domain) for key, domain in self.space.items()}
        first, own = {key: values[0] for key, values in tried.items()}, FleetConfig().train_config.num_iterations
        for key, values in tried.items():
            for value in values:
                config = load(self.config, self.overrides(first | {key: value}))
                if not (config.stop.env_steps or config.stop.minutes or config.train_config.num_iterations != own):
                    raise ConfigError("a trial needs an end: set stop.env_steps or stop.minutes")

    def to_dict(self) -> dict[str, Any]:
        """The spec as plain data, as its file has it."""
        return asdict(self)


def read_spec(path: Path) -> SweepSpec:
    """Reads a sweep's file.

    Raises:
        ConfigError: If it cannot be read, or a key or value is wrong.
    """
    data = read_yaml(path.read_text, path)
    known = [declared.name for declared in fields(SweepSpec)]
    for key in data:
        if key not in known:
            raise ConfigError(f"unknown key {key} ({path}); a sweep has {', '.join(known)}")
    space = data.get("space")
    if not isinstance(space, dict):
        raise ConfigError(f"space ({path}) must have keys with their values, got {space!r}")
    for declared in fields(SweepSpec):
        value = data.get(declared.name, declared.default)
        if isinstance(declared.default, str | int) and type(value) is not type(declared.default):
            kind = "a whole number" if isinstance(declared.default, int) else "a text"
            raise ConfigError(f"{declared.name} ({path}) must be {kind}, got {value!r}")
    if not all(isinstance(override, str) for override in _listed(data.get("set", []))):
        raise ConfigError(f"set ({path}) must be a list of key=value, got {data['set']!r}")
    try:
        return SweepSpec(**data | {"space": {key: _domain(key, domain) for key, domain in space.items()}})
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _domain(key: str, domain: Any) -> Range | list[Any]:
    """Raises a `ConfigError` that names the key if there is nothing to choose from."""
    if isinstance(domain, list) and domain and not any(isinstance(value, list | dict) for value in domain):
        return domain
    try:
        return Range(**domain)
    except TypeError as error:
        raise ConfigError(
            f"space.{key} must be a list of single values or {{low: …, high: …, log: true}}, got {domain!r}"
        ) from error
    except ConfigError as error:
        raise ConfigError(f"space.{key}: {error}") from error


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [None]


def _tried(domain: Range | Sequence[Any]) -> Sequence[Any]:
    if not isinstance(domain, Range):
        return domain
    inside = domain.high if domain.is_whole else domain.low + 0.618 * (domain.high - domain.low)  # Hardly ever whole.
    return domain.low, inside, domain.high
