"""Corridor: an endless walk, cut by a time limit, whose value is known exactly.

The corridor is closed to a ring, so every cell is like every other. The walk has no end; only an episode has, after a
random number of steps that the observation does not show. So the value is the same in every cell at every time:
p / (1 - discount) for a policy that steps forward with probability p. A learner that takes the time limit for an end
learns one far too low: below `limit`.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

BACK, FORWARD = 0, 1


class Corridor(gymnasium.Env[NDArray[np.float32], Any]):
    """A ring of `length` cells. Stepping forward pays 1, stepping back nothing.

    obs     [length] float32: the cell, one-hot
    action  0 back, 1 forward
    end     never terminated; truncated after 1 to 2 · limit - 1 steps, drawn uniformly, `limit` on average
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # Gymnasium's interface.

    def __init__(self, length: int = 8, limit: int = 16) -> None:
        if length < 1 or limit < 1:
            raise ValueError(f"length and limit must be >= 1, got {length} and {limit}")
        self.observation_space = spaces.Box(0.0, 1.0, (length,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._length = length
        self._limit = limit
        self._cell = 0
        self._steps_left = 0
        self._steps = 0
        self._forward_steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Starts in a random cell, with a random number of steps to go."""
        super().reset(seed=seed, options=options)
        self._cell = int(self.np_random.integers(self._length))
        self._steps_left = int(self.np_random.integers(1, 2 * self._limit))
        self._steps = self._forward_steps = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Takes a step forward or back."""
        forward = int(action) == FORWARD
        self._cell = (self._cell + (1 if forward else -1)) % self._length
        self._steps += 1
        self._steps_left -= 1
        self._forward_steps += forward
        truncated = self._steps_left == 0
        info = {"metrics": {"forward": self._forward_steps / self._steps}} if truncated else {}
        return self._obs(), float(forward), False, truncated, info

    def _obs(self) -> NDArray[np.float32]:
        obs = np.zeros(self._length, np.float32)
        obs[self._cell] = 1.0
        return obs
