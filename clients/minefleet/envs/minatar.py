"""MinAtar (Young and Tian 2019, https://arxiv.org/abs/1903.03176) as vectors."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation
from minatar.gym import BaseEnv


def flat(game: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """A game that shows its cells as floats, which policies normalise.

    obs     [10 * 10 * channels] float32: 1 where a cell has what the channel is for, else 0
    """
    env: gymnasium.Env[Any, Any] = BaseEnv(game, **kwargs)
    shape = env.observation_space.shape
    assert shape is not None
    cells = spaces.Box(0.0, 1.0, (int(np.prod(shape)),), np.float32)
    return TransformObservation(env, lambda seen: seen.astype(np.float32).ravel(), cells)
