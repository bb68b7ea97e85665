"""A run whose policy is as large as VPT's smallest and costs little to evaluate: 284 MB of float32 in 300 tensors."""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn

from minefleet.core.schema import Schema
from minefleet.policies import ActorCritic

SIZE_BYTES = 284_000_000
TENSORS = 300
OTHERS = 7
"""Tensors of the heads and of the value's statistics."""
FEATURES = 4


class Noise(gymnasium.Env[Any, Any]):
    """Shows noise, and pays for one action."""

    observation_space = Box(-1, 1, (FEATURES,))
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.look(), {}

    def look(self) -> Any:
        return self.np_random.uniform(-1, 1, FEATURES).astype(np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.look(), float(action), False, self.steps == 100, {}


class Large(ActorCritic):
    """Sees the observation as it is. One number of each large tensor counts, so that every update changes them all."""

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema, features=FEATURES)
        size = SIZE_BYTES // 4 // (TENSORS - OTHERS)
        self.ballast = nn.ParameterList(torch.randn(size) for _ in range(TENSORS - OTHERS))

    def encode(self, obs: Any) -> Tensor:
        features: Tensor = obs
        if torch.is_grad_enabled():
            features = features + 1e-6 * torch.stack([part[0] for part in self.ballast]).sum()
        return features


def env_generator() -> Noise:
    return Noise()


def policy_generator(schema: Schema) -> Large:
    return Large(schema)


online_dict = {
    "rollout_config": {
        "num_rollout_workers": 2,
        "fragment_length": 32,
        "worker_config": {"num_envs": 4, "envs_per_process": 4},
        "replay_buffer_config": {"max_staleness": 2},
    },
    "train_config": {
        "num_iterations": 1_000_000,
        "batch_size_per_gpu": 8,
        "batches_per_iteration": 1,
        "epochs_per_iteration": 1,
        "latest_min_interval_s": 10.0,
    },
}
