"""Every key that says how the learner trains changes what it learns: none is ignored."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minefleet.config import FleetConfig, PolicyConfig, TrainConfig
from minefleet.core.fragment import Fragment
from minefleet.core.schema import Schema
from minefleet.runs.run_yaml import Run
from minefleet_learner.build import build_updater
from minefleet_learner.data.batch import Batch, collate
from minefleet_learner.targets.value_and_advantage_estimates import estimate
from minefleet_learner.training.schedules import rates
from minefleet_learner.training.updater import Updater

Make = Callable[..., Fragment]
BASE: dict[str, Any] = {
    "batch_size_per_gpu": 2,
    "batches_per_iteration": 4,
    "epochs_per_iteration": 2,
    "context_length": 4,
    "learning_rate": 1e-2,
    "kl_divergence_coef_rho": 0.5,
}
CHANGES: dict[str, Any] = {
    "num_iterations": 40,
    "vf_warmup": 5,
    "learning_rate": 2e-2,
    "anneal_lr_linearly": True,
    "weight_decay": 0.5,
    "adam_eps": 1.0,
    "batch_size_per_gpu": 4,
    "gradient_accumulation": 2,
    "epochs_per_iteration": 3,
    "context_length": 8,
    "discount": 0.5,
    "gae_lambda": 0.1,
    "gae_values": "behaviour",
    "ppo_clip": 0.01,
    "anneal_clip_linearly": True,
    "clip_vloss": True,
    "max_grad_norm": 0.01,
    "ppo_policy_coef": 3.0,
    "ppo_vf_coef": 3.0,
    "kl_divergence_coef_rho": 0.0,
    "coef_rho_decay": 0.5,
    "entropy_bonus_coef": 0.5,
    "log_ratio_range": 0.01,
    "normalize_advantage_full_batch": False,
    "use_normalized_vf": False,
    "off_policy": "vtrace",
}
NEEDS: dict[str, dict[str, Any]] = {"num_iterations": {"anneal_lr_linearly": True}, "clip_vloss": {"ppo_clip": 1e-3}}
"""Other keys that must be set for a key to matter."""


def trained(directory: Path, schema: Schema, make: Make, **keys: Any) -> torch.Tensor:
    """All parameters, in one row, after three updates in the middle of a run."""
    config = TrainConfig(**(BASE | keys))
    updater = make_updater(directory, schema, config)
    for number in range(3):
        update(updater, make, config, number)
    return torch.cat([parameter.detach().flatten() for parameter in updater.policy.parameters()])


def make_updater(directory: Path, schema: Schema, config: TrainConfig) -> Updater:
    fleet = FleetConfig(policy=PolicyConfig(hidden_size=16, hidden_layers=1, gru_size=5), train_config=config)
    return build_updater(Run(directory=directory, config=fleet, schema=schema, architecture=""), torch.device("cpu"))


def update(updater: Updater, make: Make, config: TrainConfig, number: int) -> None:
    """An update on fragments of noise."""
    iteration = number + 2
    share = iteration / min(config.num_iterations, 100)
    updater.update(noise(make, number), rates(config, iteration, share))


def noise(make: Make, number: int) -> Batch:
    state = {"gru": np.zeros(5)}
    fragments = [make(10 * number + row, 8, truncated=(2,), terminated=(5,), state=state) for row in range(8)]
    return collate([((f"s{row}", 0), one) for row, one in enumerate(fragments)])


@pytest.mark.parametrize("key", CHANGES)
def test_train_config_key_changes_what_is_learned(
    tmp_path: Path, schema: Schema, make_fragment: Make, key: str
) -> None:
    base = NEEDS.get(key, {})
    before = trained(tmp_path, schema, make_fragment, **base)
    assert not torch.equal(before, trained(tmp_path, schema, make_fragment, **(base | {key: CHANGES[key]})))


def test_train_config_with_the_same_keys_learns_the_same(tmp_path: Path, schema: Schema, make_fragment: Make) -> None:
    assert torch.equal(*(trained(tmp_path, schema, make_fragment) for _ in range(2)))


@pytest.mark.parametrize(("at_a_time", "rows"), [(3, [3, 3, 2]), (0, [2, 2, 2, 2])])
def test_inference_batch_size_bounds_the_fragments_recomputed_at_a_time(
    tmp_path: Path, schema: Schema, make_fragment: Make, at_a_time: int, rows: list[int]
) -> None:
    config = TrainConfig(**(BASE | {"inference_batch_size_per_gpu": at_a_time, "context_length": 64}))
    policy, seen = make_updater(tmp_path, schema, config).policy, []
    policy.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[2])))
    estimate(policy, noise(make_fragment, 0), config)
    assert seen == rows
