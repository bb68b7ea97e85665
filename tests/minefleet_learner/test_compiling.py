"""Compiled passes of the learner's policy."""

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.updates import make_batch, weights
from torch import nn

from minefleet.config import TrainConfig
from minefleet.fragment import Fragment
from minefleet.policies import ActorCritic, Policy
from minefleet.schema import Schema
from minefleet.tree import Tree
from minefleet_learner.assembly import build_optimizer
from minefleet_learner.compiling import compiled_policy
from minefleet_learner.schedule import rates
from minefleet_learner.update import Updater

Make = Callable[..., Fragment]
MakePolicy = Callable[..., Policy]
CONFIG = TrainConfig(batch_size_per_gpu=2, batches_per_iteration=3, epochs_per_iteration=2)


class Uncompilable(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, obs: Tree) -> torch.Tensor:
        if torch.compiler.is_compiling():
            raise RuntimeError("not to be traced")
        return torch.as_tensor(self.inner(obs))


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_a_policy_that_cannot_be_compiled_runs_as_it_is_with_a_message(
    schema: Schema, make_policy: MakePolicy, caplog: pytest.LogCaptureFixture
) -> None:
    policy = make_policy()
    assert isinstance(policy, ActorCritic)
    policy.encoder = Uncompilable(policy.encoder)
    with caplog.at_level(logging.WARNING):
        assert compiled_policy(policy, schema, torch.float32) is policy
    assert any("runs uncompiled" in record.message for record in caplog.records)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("gru_size", [0, 5])
def test_compiled_updates_equal_those_as_it_is(
    schema: Schema, make_fragment: Make, make_policy: MakePolicy, gru_size: int, caplog: pytest.LogCaptureFixture
) -> None:
    results = []
    for compiles in (False, True):
        policy = make_policy(gru_size)
        compiled = compiled_policy(policy, schema, torch.float32) if compiles else None
        assert compiled is not policy
        updater = Updater(policy, build_optimizer(policy, CONFIG), CONFIG, None, compiled=compiled)
        torch.manual_seed(0)
        for seed in range(2):
            config = replace(CONFIG, learning_rate=1e-3)
            updater.update(make_batch(make_fragment, seed, gru_size), rates(config, 0, 0.0))
        results.append(weights(policy))
    for name, tensor in results[0].items():
        torch.testing.assert_close(results[1][name], tensor, rtol=0, atol=1e-5)
    assert not any("runs uncompiled" in record.message for record in caplog.records)
