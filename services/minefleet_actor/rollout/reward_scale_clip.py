"""The reward that is trained on, made from the environment's, which is what returns are sums of."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minefleet.config import WrappersConfig

Rewards = NDArray[Any]
Shape = Callable[[Rewards], Rewards]


def unchanged(reward: Rewards) -> Rewards:
    """The reward as it is."""
    return reward


def shaping(wrappers: WrappersConfig) -> Shape:
    """Returns what `reward_scale` and `reward_clip` make of rewards."""
    scale, clip = wrappers.reward_scale, wrappers.reward_clip
    if clip:
        return lambda reward: np.clip(reward * scale, -clip, clip)
    return unchanged if scale == 1 else lambda reward: reward * scale
