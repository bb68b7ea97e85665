"""Environments for the tests of several steps per decision."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv


class Diary(gymnasium.Env[Any, Any]):
    """Shows how many steps were taken, pays their square, and writes down what it was asked to do."""

    observation_space = spaces.Box(0, np.inf, (1,), np.float32)
    action_space = spaces.Dict(
        {
            "dig": spaces.Discrete(3, start=-1),
            "keys": spaces.MultiBinary(2),
            "inner": spaces.Tuple([spaces.MultiDiscrete([2, 4], start=[1, 0]), spaces.Box(-1, 1, (2, 1), np.float64)]),
            "speed": spaces.Box(0, 2, (), np.float32),
        }
    )

    def __init__(self, end: int = 1000, cut: int = 1000, breaks: int = 1000) -> None:
        self.end, self.cut, self.breaks = end, cut, breaks
        self.asked: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.asked.append(action)
        self.steps += 1
        info = {"error": "broken"} if self.steps == self.breaks else {"at": self.steps}
        obs = np.full(1, self.steps, np.float32)
        return obs, float(self.steps**2), self.steps == self.end, self.steps == self.cut, info


class Options(gymnasium.Env[Any, Any]):
    """Takes as many steps as the policy says, at most `longest`; step i pays i. `says` stands for the rewards."""

    observation_space = spaces.Box(0, np.inf, (1,), np.float32)

    def __init__(self, longest: int = 4, end: int = 1000, says: Any = None) -> None:
        self.action_space = spaces.Discrete(longest, start=1)
        self.end, self.says = end, says

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        rewards: list[float] = []
        while len(rewards) < action and self.steps < self.end:
            self.steps += 1
            rewards.append(float(self.steps))
        info = {"step_rewards": rewards if self.says is None else self.says}
        return np.full(1, self.steps, np.float32), sum(rewards), self.steps == self.end, False, info


def batch(num_envs: int, end: int) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: Options(end=end)] * num_envs)
