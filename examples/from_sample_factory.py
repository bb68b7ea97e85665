"""Turns environments registered with Sample Factory into a configuration: `minefleet train
examples/from_sample_factory.py`.
"""

import torch
from compass import Compass
from torch import nn

from minefleet.policies import ActorCritic


class CompassPolicy(ActorCritic):
    """Only the encoder is ours; heads and value normalisation come with `ActorCritic`."""

    def __init__(self, schema):
        super().__init__(schema, features=64)
        self.net = nn.Linear(2, 64)

    def encode(self, obs):
        return torch.tanh(self.net(obs))


def env_generator(points=4):
    return Compass(points)


def policy_generator(schema):
    return CompassPolicy(schema)


online_dict = {
    "env": {"kwargs": {"points": 8}},
    "rollout_config": {
        "num_rollout_workers": 2,
        "fragment_length": 32,
        "worker_config": {"num_envs": 4, "envs_per_process": 4},
    },
    "train_config": {
        "batch_size_per_gpu": 8,
        "batches_per_iteration": 1,
        "epochs_per_iteration": 4,
        "learning_rate": 3e-3,
        "discount": 0.5,
    },
    "stop": {"env_steps": 40_000},
}
