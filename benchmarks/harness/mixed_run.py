"""Environments of which some are slow: a configuration for `minefleet train`.

MIXED has, as JSON, how long a step of a fast and of a slow one takes, seconds; every how many is slow; and a file in
which environments count their births. Optional: `reset_s`, how long a reset takes, and `episode`, the steps of one, of
which the first then begins anywhere. The reward says which of two sides is shown: the slow ones want the side, the
others the opposite. With `recall` all name a cue that was shown 16 steps before, by a policy with memory.
"""

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

MIXED = json.loads(os.environ.get("MIXED", '{"fast_s": 0.001, "slow_s": 0.06, "one_in": 2, "births": ""}'))
STEPS = MIXED.get("episode", 32)
"""Of an episode."""


class Mixed(gymnasium.Env[NDArray[np.float32], Any]):
    """Two sides, one of which is right."""

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self) -> None:
        self._is_slow = is_slow()
        self._begins_at = random.randrange(STEPS) if "episode" in MIXED else 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begins an episode."""
        super().reset(seed=seed, options=options)
        time.sleep(MIXED.get("reset_s", 0.0))
        self._step, self._begins_at = self._begins_at, 0
        return self._look(), self._info

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Takes as long as this environment does."""
        time.sleep(MIXED["slow_s" if self._is_slow else "fast_s"])
        reward = float(action == (self._side if self._is_slow else 1 - self._side))
        self._step += 1
        return self._look(), reward, False, self._step == STEPS, self._info

    @property
    def _info(self) -> dict[str, Any]:
        return {"task": "slow" if self._is_slow else "fast"}

    def _look(self) -> NDArray[np.float32]:
        self._side = int(self.np_random.integers(2))
        return np.array([2 * self._side - 1, 1.0 if self._is_slow else -1.0], np.float32)


class PacedRecall(gymnasium.Wrapper[NDArray[np.float32], Any, NDArray[np.float32], Any]):
    """Recall that takes as long."""

    def __init__(self) -> None:
        from minefleet.envs.recall import Recall  # Peers have no minefleet.

        super().__init__(Recall(delay=16))
        self._task, self._step_s = ("slow", MIXED["slow_s"]) if is_slow() else ("fast", MIXED["fast_s"])

    def reset(self, **options: Any) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begins an episode."""
        obs, info = super().reset(**options)
        return obs, {**info, "task": self._task}

    def step(self, action: Any) -> tuple[NDArray[np.float32], Any, bool, bool, dict[str, Any]]:
        """Takes as long as this environment does."""
        time.sleep(self._step_s)
        return super().step(action)


def is_slow() -> bool:
    """Whether an environment that is made now is slow."""
    births = Path(MIXED["births"])
    with births.open("ab", buffering=0) as file:
        file.write(b"x")
    return bool(births.stat().st_size % MIXED["one_in"] == 0)


def env_generator() -> gymnasium.Env[NDArray[np.float32], Any]:
    """One environment."""
    return PacedRecall() if MIXED.get("recall") else Mixed()


recall_dict = {
    "policy": {"hidden_size": 64, "hidden_layers": 1, "gru_size": 64, "normalize_obs": False},
    "rollout_config": {"fragment_length": 64, "worker_config": {"num_envs": 8}},
    "train_config": {
        "batch_size_per_gpu": 4,
        "batches_per_iteration": 4,
        "learning_rate": 2e-3,
        "epochs_per_iteration": 6,
        "discount": 0.99,
        "gae_lambda": 1.0,
        "entropy_bonus_coef": 0.003,
    },
}
sides_dict = {
    # An input that is rarely 1 would become large by normalisation; the slow task is hardly learned then.
    "policy": {"activation": "relu", "normalize_obs": False},
    "rollout_config": {"fragment_length": 32, "worker_config": {"num_envs": 8}},
    "train_config": {"batch_size_per_gpu": 8, "learning_rate": 1e-3, "epochs_per_iteration": 2, "discount": 0.5},
}

online_dict = recall_dict if MIXED.get("recall") else sides_dict
