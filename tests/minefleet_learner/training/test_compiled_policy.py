"""Compiled passes of the learner's policy."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.updates import make_batch, weights
from torch._inductor import config as inductor

from minefleet.config import TrainConfig
from minefleet.core.fragment import Fragment
from minefleet.core.schema import Schema
from minefleet.policies import Policy
from minefleet_learner.build import build_optimizer
from minefleet_learner.training.compiled_policy import compiled_policy
from minefleet_learner.training.schedules import rates
from minefleet_learner.training.updater import Updater

Make = Callable[..., Fragment]
MakePolicy = Callable[..., Policy]
CONFIG = TrainConfig(batch_size_per_gpu=2, batches_per_iteration=3, epochs_per_iteration=2)


@pytest.mark.filterwarnings("ignore")
def test_a_policy_that_cannot_be_compiled_runs_as_it_is_with_a_message(
    schema: Schema,
    make_policy: MakePolicy,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    policy = make_policy()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with inductor.patch({"cpp.cxx": ("no-such-compiler",)}), caplog.at_level(logging.WARNING):
        assert compiled_policy(policy, schema, torch.float32) is policy
    assert any("no-such-compiler" in record.message for record in caplog.records)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
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
