"""Inference on a GPU: whatever the options, what is recorded is what the learner's weights say."""

import logging

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from minefleet.config import PolicyConfig
from minefleet.core.schema import Leaf, Schema
from minefleet.policies import Policy, build
from minefleet.policies.precision import DTYPES
from minefleet.policies.weight_arrays import to_numpy
from minefleet_actor.inference.compiled_forward import ForwardOptions
from minefleet_actor.inference.policy_runner import PolicyRunner
from minefleet_learner.diagnostics.parity import BOUNDS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")

SCHEMA = Schema(
    obs=Leaf(kind="box", shape=(64, 64, 3), dtype="uint8", low=0, high=255),
    action=Leaf(kind="discrete", shape=(), dtype="int64", categories=(17,)),
)
SLOTS = 9
EVERY = np.arange(SLOTS)
GPU = torch.device("cuda")


def policy_of(seed: int = 0) -> Policy:
    torch.manual_seed(seed)
    made = build(PolicyConfig(hidden_size=256, conv_channels=[16, 32, 32], gru_size=256), SCHEMA)
    for parameter in made.action_head.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return made


def looks(count: int) -> list[NDArray[np.uint8]]:
    return list(np.random.default_rng(0).integers(0, 256, (count, SLOTS, 64, 64, 3), np.uint8))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("cuda_graphs", [False, True])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_policy_runner_on_a_gpu_records_within_the_bound_of_its_dtype(
    is_compiled: bool, cuda_graphs: bool, dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        acting = PolicyRunner(
            policy_of(), SCHEMA, SLOTS, device=GPU, seed=1, greedy=False,
            options=ForwardOptions(dtype=DTYPES[dtype], compile=is_compiled, cuda_graphs=cuda_graphs),
        )  # fmt: skip
    assert not [record.message for record in caplog.records if record.name.startswith("minefleet")]
    exact = policy_of(1).eval()
    acting.swap(to_numpy(exact), 1)
    state = exact.initial_state(SLOTS)
    first = torch.ones(SLOTS, 1, dtype=torch.bool)
    for number, obs in enumerate(looks(8)):
        some = EVERY if number % 3 else EVERY[: 1 + number]
        if number == 5:
            acting.reset(EVERY[2:4])
            first[2:4] = True
        decision = acting.decide(some, obs)
        with torch.no_grad():
            output, after = exact(torch.from_numpy(obs[some]).unsqueeze(1), {"gru": state["gru"][some]}, first[some])
        logp = exact.action_head.logp(output.params, torch.from_numpy(decision.action).unsqueeze(1)).squeeze(1)
        np.testing.assert_allclose(decision.logp, logp.detach().numpy(), rtol=0, atol=BOUNDS[dtype])
        value = exact.value_norm.denormalize(output.value).squeeze(1)
        np.testing.assert_allclose(decision.value, value.numpy(), rtol=0, atol=BOUNDS[dtype])
        state["gru"][some] = after["gru"]
        first[some] = False
