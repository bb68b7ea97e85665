"""Environments of which each step takes 50 ms and one in 200 raises: a configuration for `minefleet train`.

STEPS names a file in which every step that was played leaves a byte.
"""

import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

STEP_S, EPISODE, LIFE = 0.05, 100, 200


class Mortal(gymnasium.Env[NDArray[np.float32], Any]):
    """Pays for the side that is shown."""

    observation_space = Box(-1, 1, (4,), np.float32)
    action_space = Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._rng = np.random.default_rng()
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begins an episode."""
        self._step = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Takes its time, and raises now and then."""
        time.sleep(STEP_S)
        if self._rng.random() < 1 / LIFE:
            raise RuntimeError("the game has crashed")
        with Path(os.environ["STEPS"]).open("ab", buffering=0) as file:
            file.write(b"x")
        reward, self._step = float(action == self._side), self._step + 1
        return self._look(), reward, False, self._step == EPISODE, {}

    def _look(self) -> NDArray[np.float32]:
        self._side = int(self._rng.integers(2))
        return np.full(4, 2 * self._side - 1, np.float32)


def env_generator() -> Mortal:
    """One environment."""
    return Mortal()


online_dict = {
    "rollout_config": {"fragment_length": 32, "worker_config": {"num_envs": 32}},
    "train_config": {"batch_size_per_gpu": 8, "batches_per_iteration": 4, "epochs_per_iteration": 2},
}
