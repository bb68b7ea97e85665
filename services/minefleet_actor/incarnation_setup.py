"""Names and seeds of an actor's incarnation, the tasks that it begins with, and its canary slots."""

import secrets
import uuid
from collections.abc import Mapping
from random import Random

import numpy as np
from numpy.typing import NDArray

from minefleet.config import RolloutConfig
from minefleet_runtime.role_context import RoleContext


def choose_name(context: RoleContext, first_version: int, *, inline: bool) -> str:
    """Names this incarnation; as it was named before where everything is to be as before."""
    if inline:
        return f"serial-{first_version}"
    if context.run.config.rollout_config.worker_config.deterministic:
        return f"{context.name}-{first_version}"
    return uuid.uuid4().hex[:12]


def choose_seed(seed: int, first_version: int, *, deterministic: bool) -> int:
    """The run's seed for an actor that starts with the run; another one for an actor that joins later.

    An actor that takes the place of a dead one would otherwise play the same episodes again.
    """
    if first_version <= 1:
        return seed
    return seed + first_version if deterministic else secrets.randbits(31)


def draw_task(weights: Mapping[str, float], random: Random) -> str:
    """A task by its weight; empty where there are none."""
    return random.choices([*weights], [*weights.values()])[0] if weights else ""


def canary_slots(config: RolloutConfig, actor_index: int) -> NDArray[np.bool_]:
    """[S] bool: the slots of an actor that act by new versions first, so many of the fleet's first n for each n."""
    slots = actor_index * config.worker_config.num_envs + np.arange(config.worker_config.num_envs + 1)
    is_canary: NDArray[np.bool_] = np.diff(np.ceil(config.canary_share * slots)) > 0
    return is_canary
