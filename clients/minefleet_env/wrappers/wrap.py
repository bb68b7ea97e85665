"""`env.wrappers`: what lies between an environment and its slot. Gymnasium is imported where a wrapper is wanted.

    environment ─▶ time limit ─▶ frame skip ─▶ resize ─▶ grey ─▶ frame stack ─▶ action mask ─▶ action chunk ─▶ slot

`reward_scale` and `reward_clip` are not applied here but where the actor records a step: returns stay those of the
environment.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from minefleet_env.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULTS = {
    "time_limit": 0,
    "frame_skip": 1,
    "resize": [],
    "grey": False,
    "frame_stack": 1,
    "action_mask": "",
    "action_chunk": 1,
}
"""The keys that are applied here, and the values at which nothing is to be done."""


def wrap(env: Any, wrappers: Mapping[str, Any]) -> Any:
    """Wraps an environment.

    Args:
        env: A `gymnasium.Env`; anything where no wrapper is wanted.
        wrappers: The keys of `env.wrappers` with their values.

    Raises:
        RefusedError: If this interpreter lacks what a wrapper needs, or a wrapper does not fit the environment.
    """
    if all(wrappers[key] == off for key, off in DEFAULTS.items()):
        return env
    try:
        from minefleet_env.wrappers.gymnasium_wrapper_chain import apply
    except ImportError as error:
        raise RefusedError(f"env.wrappers need gymnasium 1.0 or newer; {sys.executable} says: {error}") from error
    return apply(env, wrappers)
