"""A world of old gym, played by an interpreter of its own; the README says how."""

import gym
import numpy as np
from gym import spaces


class Hall(gym.Env):
    """A hall to walk down. The far end pays 1."""

    def __init__(self, length=5):
        self.observation_space = spaces.Box(0.0, 1.0, (length,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.length = length

    def reset(self):
        self.place = 0
        return self.look()

    def step(self, action):
        self.place = max(0, self.place + (1 if action else -1))
        done = self.place == self.length - 1
        return self.look(), float(done), done, {}

    def look(self):
        return np.eye(self.length, dtype=np.float32)[self.place]

    def seed(self, seed=None):
        """Nothing here is drawn by chance."""


def hall(length=5):
    """Makes the world, cut after 30 steps."""
    return gym.wrappers.TimeLimit(Hall(length), max_episode_steps=30)
