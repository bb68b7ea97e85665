"""A configuration whose stages can be made slow while it runs, by the JSON file that MINEFLEET_TEST_DELAYS names.

step_s     each step of an environment sleeps for so long
pass_s     each forward pass over single steps, as actors do them, sleeps for so long
update_s   each update of the learner sleeps for so long
"""

import json
import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from minefleet.core.schema import Schema
from minefleet.core.tree import Tree
from minefleet.policies import ActorCritic
from minefleet.policies.policy import PolicyOutput
from minefleet_learner import PPOTrainer

DELAYS = "MINEFLEET_TEST_DELAYS"
SHAPE = (64, 64)
"""Noise, which does not pack: 4 KiB each."""


def delay(name: str) -> None:
    """Sleeps for as long as the file says for one of the stages."""
    time.sleep(json.loads(Path(os.environ[DELAYS]).read_text()).get(name, 0.0))


class Noise(gymnasium.Env[Any, int]):
    """Shows noise, for ever."""

    observation_space = Box(0, 255, SHAPE, np.uint8)
    action_space: Any = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._look(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        delay("step_s")
        return self._look(), 0.0, False, False, {}

    def _look(self) -> Any:
        return self.np_random.integers(0, 256, SHAPE, np.uint8)


class Glance(ActorCritic):
    """Looks at four pixels."""

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema, features=4)

    def encode(self, obs: Tree) -> Any:
        return obs[:, 0, :4].float() / 255

    def forward(self, obs: Tree, state: Tree, first: Any) -> tuple[PolicyOutput, Tree]:
        if first.shape[1] == 1:
            delay("pass_s")
        return super().forward(obs, state, first)


class SlowTrainer(PPOTrainer):
    """Sleeps in each update, as the file says."""

    def update(self, taken: Any) -> Any:
        delay("update_s")
        return super().update(taken)


def env_generator() -> Noise:
    return Noise()


def policy_generator(schema: Schema) -> Glance:
    return Glance(schema)


online_dict = {
    "trainer_name": f"{__file__}:SlowTrainer",
    "rollout_config": {
        "fragment_length": 16,
        "to_send_queue_size": 1,
        "worker_config": {"num_envs": 4, "envs_per_process": 4},
        "replay_buffer_config": {"compression": "none", "max_staleness": 0},
    },
    "train_config": {
        "batch_size_per_gpu": 4,
        "batches_per_iteration": 1,
        "epochs_per_iteration": 1,
        "context_length": 16,
        "save_interval": 0,
        "torch_threads": 1,
    },
}
