"""An environment whose observations mean something only relative to their mean and spread."""

import random
import time
from typing import Any

import gymnasium
import numpy as np

STEPS = 20
FAR, SPREAD = 10_000.0, 0.5


class Side(gymnasium.Env[Any, Any]):
    """Shows a number on either side of `FAR`; 1 for saying on which. A step takes up to `longest_s`, at random."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, longest_s: float = 0.0) -> None:
        self._longest_s = longest_s

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._steps = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(random.SystemRandom().uniform(0, self._longest_s))
        reward = float(action == self._side)
        self._steps += 1
        return self._look(), reward, False, self._steps == STEPS, {}

    def _look(self) -> np.ndarray[Any, Any]:
        self._side = int(self.np_random.integers(2))
        return np.array([FAR + SPREAD * (2 * self._side - 1)], np.float32)
