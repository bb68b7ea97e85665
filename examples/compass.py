"""A world to move from one framework to another: a needle points somewhere, the action names the point."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Compass(gymnasium.Env):
    """Right pays 1, guessing 1 / points; 20 needles are an episode."""

    def __init__(self, points=4):
        self.points = points
        self.observation_space = Box(-1, 1, (2,), np.float32)
        self.action_space = Discrete(points)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.look(), {}

    def look(self):
        angle = self.np_random.uniform(0, 2 * np.pi)
        self.answer = int(angle * self.points / (2 * np.pi))
        return np.array([np.cos(angle), np.sin(angle)], np.float32)

    def step(self, action):
        reward = float(action == self.answer)
        self.steps += 1
        return self.look(), reward, False, self.steps == 20, {}
