"""A configuration of which one stage may be slow, the others being quick: `minefleet train tests/slow_stages.py`.

env.kwargs.step_s      each step of an environment sleeps for so long
policy.kwargs.pass_s   each forward pass over single steps, as actors do them, sleeps for so long
trainer_name=tests/slow_stages.py:SlowTrainer   each update sleeps for UPDATE_S
"""

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from minefleet.policies import ActorCritic
from minefleet.policies.policy import PolicyOutput
from minefleet.schema import Schema
from minefleet.tree import Tree
from minefleet_learner import PPOTrainer

UPDATE_S = 0.5
SHAPE = (64, 64)
"""Noise, which does not pack: 4 KiB each."""


class Noise(gymnasium.Env[Any, int]):
    """Shows noise, for ever."""

    observation_space = Box(0, 255, SHAPE, np.uint8)
    action_space: Any = Discrete(2)

    def __init__(self, step_s: float = 0.0) -> None:
        self._step_s = step_s

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._look(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._step_s)
        return self._look(), 0.0, False, False, {}

    def _look(self) -> Any:
        return self.np_random.integers(0, 256, SHAPE, np.uint8)


class Glance(ActorCritic):
    """Looks at four pixels."""

    def __init__(self, schema: Schema, pass_s: float) -> None:
        super().__init__(schema, features=4)
        self._pass_s = pass_s

    def encode(self, obs: Tree) -> Any:
        return obs[:, 0, :4].float() / 255

    def forward(self, obs: Tree, state: Tree, first: Any) -> tuple[PolicyOutput, Tree]:
        if first.shape[1] == 1:
            time.sleep(self._pass_s)
        return super().forward(obs, state, first)


class SlowTrainer(PPOTrainer):
    """Sleeps in each update."""

    def update(self, taken: Any) -> Any:
        time.sleep(UPDATE_S)
        return super().update(taken)


def env_generator(step_s: float = 0.0) -> Noise:
    return Noise(step_s)


def policy_generator(schema: Schema, pass_s: float = 0.0) -> Glance:
    return Glance(schema, pass_s)


online_dict = {
    "rollout_config": {
        "fragment_length": 16,
        "to_send_queue_size": 1,
        "worker_config": {"num_envs": 4, "envs_per_process": 4},
        "replay_buffer_config": {"compression": "none"},
    },
    "train_config": {"batch_size_per_gpu": 4, "context_length": 16, "save_interval": 0, "torch_threads": 1},
}
