"""Updaters and batches for tests of what the learner trains."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from minefleet.config import TrainConfig
from minefleet.core.fragment import Fragment
from minefleet.policies import Policy
from minefleet.policies.policy import twin
from minefleet_learner.build import build_optimizer
from minefleet_learner.data.batch import Batch, collate
from minefleet_learner.training.updater import Updater

Make = Callable[..., Fragment]


def make_updater(policy: Policy, config: TrainConfig) -> Updater:
    reference = twin(policy).requires_grad_(False) if config.kl_divergence_coef_rho else None
    return Updater(policy, build_optimizer(policy, config), config, reference)


def make_batch(make: Make, seed: int, gru_size: int = 0, fragments: int = 6, **changes: Any) -> Batch:
    state = {"gru": np.zeros(gru_size)} if gru_size else {}
    return collate(
        [
            (
                (f"s{index // 2}", index % 2),
                make(100 * seed + index, 6 + index, truncated=(2,), terminated=(4,), state=state, **changes),
            )
            for index in range(fragments)
        ]
    )


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in policy.state_dict().items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)
