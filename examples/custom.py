"""A world and a policy of your own, with dict observations and dict actions: `minefleet train examples/custom.py`."""

import gymnasium
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch import nn

from minefleet.policies import ActorCritic


class Treasure(gymnasium.Env):
    """A needle points at a quarter of the compass, a lamp says whether to dig. Both right pays 1; guessing 0.125."""

    observation_space = Dict({"needle": Box(-1, 1, (2,)), "lamp": Discrete(2)})
    action_space = Dict({"turn": Discrete(4), "dig": Discrete(2)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.look(), {}

    def look(self):
        needle = self.np_random.uniform(-1, 1, 2).astype("float32")
        self.answer = {"turn": 2 * (needle[0] > 0) + (needle[1] > 0), "dig": self.np_random.integers(2)}
        return {"needle": needle, "lamp": self.answer["dig"]}

    def step(self, action):
        reward = float(action["turn"] == self.answer["turn"] and action["dig"] == self.answer["dig"])
        self.steps += 1
        return self.look(), reward, False, self.steps == 20, {}


class Seeker(ActorCritic):
    """Only the encoder is ours; heads, memory and value normalisation come with `ActorCritic`."""

    def __init__(self, schema):
        super().__init__(schema, features=64)
        self.needle, self.lamp = nn.Linear(2, 64), nn.Embedding(2, 64)

    def encode(self, obs):
        return torch.tanh(self.needle(obs["needle"]) + self.lamp(obs["lamp"]))


def env_generator():
    return Treasure()


def policy_generator(schema):
    return Seeker(schema)


online_dict = {
    "rollout_config": {"fragment_length": 32, "worker_config": {"num_envs": 8, "envs_per_process": 8}},
    "train_config": {
        "learning_rate": 3e-3,
        "batch_size_per_gpu": 8,
        "batches_per_iteration": 1,
        "epochs_per_iteration": 4,
        "discount": 0.5,
    },
    "stop": {"env_steps": 40_000},
}
