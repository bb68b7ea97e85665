"""Environments: made from a config, and minefleet's own, registered with Gymnasium.

`minefleet/Recall-v0`     a cue to be named after a delay; needs memory
`minefleet/Corridor-v0`   endless, cut by a time limit; its value is known
`minefleet/Crafter-v0`    Crafter, with worlds made ahead
`minefleet/Faulty-v0`     fails in every way, by chance; marks its observations

Any environment may report on a finished episode in the last step's info: `info["metrics"]`, a dict from names to
floats, and `info["task"]`, the name of the task that was played. `info["error"]`, in any step, says that the
environment is broken: the step is dropped and the environment replaced.
"""

import difflib
from typing import Any

import gymnasium

from minefleet.config import EnvConfig
from minefleet.errors import ConfigError
from minefleet.generators import load

Env = gymnasium.Env[Any, Any]

_OURS = {
    "minefleet/Recall-v0": "minefleet.envs.recall:Recall",
    "minefleet/Corridor-v0": "minefleet.envs.corridor:Corridor",
    "minefleet/Crafter-v0": "minefleet.envs.crafter:Crafter",
    "minefleet/Faulty-v0": "minefleet.envs.faulty:Faulty",
}
for _id, _entry_point in _OURS.items():
    gymnasium.register(_id, entry_point=_entry_point)


def make(config: EnvConfig, render_mode: str | None = None) -> Env:
    """Makes the environment that a config names. One from a generator renders as it is made.

    Raises:
        ConfigError: If there is no such environment, a package of its is missing, or the generator makes none.
    """
    if config.generator:
        return _generated(config)
    if config.id:
        return _registered(config, render_mode)
    raise ConfigError("give env.id or env.generator: both are empty")


def _generated(config: EnvConfig) -> Env:
    env = load(config.generator)(**config.kwargs)
    if not isinstance(env, gymnasium.Env):
        raise ConfigError(f"{config.generator} made a {type(env).__name__}, expected a gymnasium.Env")
    return env


def _registered(config: EnvConfig, render_mode: str | None) -> Env:
    kwargs = config.kwargs if render_mode is None else config.kwargs | {"render_mode": render_mode}
    try:
        return gymnasium.make(config.id, disable_env_checker=True, **kwargs)
    except ModuleNotFoundError as error:
        raise ConfigError(f"env.id {config.id!r} needs a package that is not installed: {error}") from error
    except gymnasium.error.Error as error:
        nearest = difflib.get_close_matches(config.id, gymnasium.registry) or sorted(_OURS)
        raise ConfigError(f"env.id {config.id!r}: {error} The nearest are {', '.join(nearest)}.") from error
