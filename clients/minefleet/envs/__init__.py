"""Environments: made from a config, and minefleet's own, registered with Gymnasium.

`minefleet/Recall-v0`     a cue to be named after a delay; needs memory
`minefleet/Corridor-v0`   endless, cut by a time limit; its value is known
`minefleet/Crafter-v0`    Crafter, with worlds made ahead

Any environment may report on a finished episode in the last step's info: `info["metrics"]`, a dict from names to
floats, and `info["task"]`, the name of the task that was played. `info["error"]`, in any step, says that the
environment is broken: the step is dropped and the environment replaced.

Environment processes import this package for our own ids, so importing it loads Gymnasium and nothing of the fleet.
"""

from typing import TYPE_CHECKING, Any

import gymnasium

if TYPE_CHECKING:
    from minefleet.config import EnvConfig
    from minefleet.core.schema import Schema

Env = gymnasium.Env[Any, Any]

_OURS = {
    "minefleet/Recall-v0": "minefleet.envs.recall:Recall",
    "minefleet/Corridor-v0": "minefleet.envs.truncation_corridor:Corridor",
    "minefleet/Crafter-v0": "minefleet.envs.crafter:Crafter",
}
for _id, _entry_point in _OURS.items():
    gymnasium.register(_id, entry_point=_entry_point)


def make(config: "EnvConfig", render_mode: str | None = None) -> Any:
    """Makes the environment that a config names, in this process. One from a generator renders as it is made.

    Raises:
        ConfigError: If there is no such environment, a package of its is missing, or the generator makes none.
    """
    from dataclasses import asdict

    from minefleet.core.function_references import refusing
    from minefleet_env import make_env

    with refusing():
        return make_env.make(asdict(config), render_mode)


def schema_of(env: Any) -> "Schema":
    """Returns the schema of an environment's observations and actions.

    Raises:
        ConfigError: If a space, or a key of a Dict, has no counterpart in a schema; names the leaf.
    """
    from minefleet.core.function_references import refusing
    from minefleet.core.schema import Schema
    from minefleet_env import space_conversion

    with refusing():
        return Schema.from_dict(space_conversion.schema_of(env))
