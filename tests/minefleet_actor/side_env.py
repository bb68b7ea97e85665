"""An environment whose observations mean something only relative to their mean and spread."""

import time
from collections.abc import Collection
from typing import Any

import gymnasium
import numpy as np

STEPS = 20
FAR, SPREAD = 10_000.0, 0.5
SLOW_S = 0.005
"""Of a step of a slow one."""


class Side(gymnasium.Env[Any, Any]):
    """Shows a number on either side of `FAR`; 1 for saying on which. Slow where its seed is one of `slow_seeds`."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, slow_seeds: Collection[int] = ()) -> None:
        self._slow_seeds = slow_seeds
        self._is_slow = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._is_slow |= seed in self._slow_seeds
        self._steps = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(SLOW_S * self._is_slow)
        reward = float(action == self._side)
        self._steps += 1
        return self._look(), reward, False, self._steps == STEPS, {}

    def _look(self) -> np.ndarray[Any, Any]:
        self._side = int(self.np_random.integers(2))
        return np.array([FAR + SPREAD * (2 * self._side - 1)], np.float32)
