"""Changes of live keys: settings, which are values by dotted key, on top of a run's configuration."""

from collections.abc import Mapping
from functools import cache, reduce
from typing import Any

from omegaconf import OmegaConf, read_write
from omegaconf.errors import OmegaConfBaseException

from minefleet.config.key_docs import key_docs
from minefleet.config.keys import all_keys, kind_of, unknown_key, wanted, whole_numbers
from minefleet.config.load import to_object
from minefleet.config.replay_partitioning import spread
from minefleet.config.root_config import FleetConfig
from minefleet.core.errors import ConfigError

SOURCE = "settings"
"""Names them in messages."""
STALENESS = "rollout_config.replay_buffer_config.max_staleness"
MAX_STALENESS = 6
"""A run that starts with a smaller one keeps as many versions at parameters, and two more."""
STAYS_ZERO = {
    "train_config.kl_divergence_coef_rho": "this run keeps no reference, which a start makes",
    "train_config.record_video_interval": "environments that show no pixels render only if they were made for it",
    STALENESS: "this run leases nothing ahead, which a start decides",
}
"""Why keys that are 0 in `run.yaml` must stay so."""
READERS = {
    "policy": "all checkpoints and versions of a run are of one architecture: begin a new run",
    "train_config.discount": "values and returns that are recorded already are of the old one",
    "train_config": "the learner is built by it",
    "logger_config": "the learner opens its loggers by it",
    "rollout_config.replay_buffer_config": "replay lays out its store by it",
    "rollout_config": "actors are built by it",
    "env": "actors make their environments by it",
}
"""Why keys are not live, by the beginnings of their names; the first that fits counts."""


@cache
def live_keys() -> frozenset[str]:
    """The keys that may change while a run goes."""
    return frozenset(key.path for key in key_docs() if key.is_live)


def with_settings(config: FleetConfig, settings: Mapping[str, Any]) -> FleetConfig:
    """A run's configuration, as in its `run.yaml`, with the values that live keys have meanwhile.

    Raises:
        ConfigError: If a key is not live, or a value does not go with the rest; names it, and what to do.
    """
    if not settings:
        return config
    for key in settings.keys() - live_keys():
        raise _not_live(key)
    for key in STAYS_ZERO.keys() & settings.keys():
        if settings[key] and not value_of(config, key):
            raise ConfigError(f"{key} must stay 0, got {settings[key]}: {STAYS_ZERO[key]}; {_restart(key)}")
    tree = OmegaConf.structured(config)
    for key, value in settings.items():
        try:
            with read_write(OmegaConf.select(tree, key.rpartition(".")[0])):
                OmegaConf.update(tree, key, whole_numbers(value, kind_of(key)), merge=False)
        except OmegaConfBaseException as error:
            raise ConfigError(f"{key} must be {wanted(kind_of(key))}, got {value!r}") from error
    changed = spread(to_object(tree))
    most = max(MAX_STALENESS, value_of(config, STALENESS))
    if value_of(changed, STALENESS) > most:
        raise ConfigError(
            f"{STALENESS} must be <= {most} while this run goes, got {settings[STALENESS]}: parameters keeps no more "
            f"versions; {_restart(STALENESS)}"
        )
    return changed


def settings_of(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested plain data as settings: a live key keeps its value whole, a mapping included."""
    flat: dict[str, Any] = {}
    for name, value in data.items():
        key = f"{prefix}{name}"
        flat |= settings_of(value, f"{key}.") if isinstance(value, Mapping) and key not in live_keys() else {key: value}
    return flat


def value_of(config: FleetConfig, key: str) -> Any:
    """The value that a configuration has for a dotted key."""
    return reduce(getattr, key.split("."), config)


def _not_live(key: str) -> ConfigError:
    if key not in all_keys():
        return unknown_key(key, SOURCE)
    why = next((reason for start, reason in READERS.items() if f"{key}.".startswith(f"{start}.")), "roles start by it")
    return ConfigError(f"{key} cannot change while a run goes: {why}{'' if 'new run' in why else f'; {_restart(key)}'}")


def _restart(key: str) -> str:
    return f"stop the run and go on by `minefleet train --resume RUN {key}=VALUE`"
