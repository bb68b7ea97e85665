"""The task that a slot begins with, and the slots that act by new versions first."""

from collections.abc import Mapping
from random import Random

import numpy as np
from numpy.typing import NDArray

from minefleet.config import RolloutConfig


def draw_task(weights: Mapping[str, float], random: Random) -> str:
    """A task by its weight; empty where there are none."""
    return random.choices([*weights], [*weights.values()])[0] if weights else ""


def canary_slots(config: RolloutConfig, actor_index: int) -> NDArray[np.bool_]:
    """[S] bool: the slots of an actor that act by new versions first, so many of the fleet's first n for each n."""
    slots = actor_index * config.worker_config.num_envs + np.arange(config.worker_config.num_envs + 1)
    is_canary: NDArray[np.bool_] = np.diff(np.ceil(config.canary_share * slots)) > 0
    return is_canary
