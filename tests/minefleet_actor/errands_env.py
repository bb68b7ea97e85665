"""An environment that plays the task that it is told to."""

from typing import Any

import gymnasium
import numpy as np


class Errands(gymnasium.Env[Any, Any]):
    """Shows the length of the name of the task that it was asked to play."""

    observation_space = gymnasium.spaces.Box(0, 200, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.task = options["task"] if options else ""
        return np.array([len(self.task)], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.array([len(self.task)], np.float32), 0.0, True, False, {}
