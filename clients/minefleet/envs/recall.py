"""Recall: a cue is shown once, and must be named a while later. A policy without memory names one in four."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

NUM_CUES = 4


class Recall(gymnasium.Env[NDArray[np.float32], Any]):
    """Shows one of four cues in the first observation and asks for it `delay` steps later.

    obs     [5] float32: the cue, one-hot, in the first observation; 1 in the last element when it asks; else 0
    action  the cue's number, which counts only when it asks
    reward  1 for the right answer, which ends the episode as the wrong one does
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # Gymnasium's interface.

    def __init__(self, delay: int = 16) -> None:
        if delay < 1:
            raise ValueError(f"delay must be >= 1, got {delay}")
        self.observation_space = spaces.Box(0.0, 1.0, (NUM_CUES + 1,), np.float32)
        self.action_space = spaces.Discrete(NUM_CUES)
        self._delay = delay
        self._cue = 0
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Draws a cue and shows it."""
        super().reset(seed=seed, options=options)
        self._cue = int(self.np_random.integers(NUM_CUES))
        self._steps = 0
        return self._showing(self._cue), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Passes the time, or judges the answer."""
        answered = self._steps == self._delay
        self._steps += 1
        if not answered:
            asks = self._steps == self._delay
            return self._showing(NUM_CUES if asks else None), 0.0, False, False, {}
        success = float(int(action) == self._cue)
        return self._showing(None), success, True, False, {"metrics": {"success": success}}

    def _showing(self, element: int | None) -> NDArray[np.float32]:
        obs = np.zeros(NUM_CUES + 1, np.float32)
        if element is not None:
            obs[element] = 1.0
        return obs
