"""Weights that lie as few rows want them: the same policy, and new weights come to lie so, too."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor

from minefleet.config import PolicyConfig
from minefleet.core.schema import Leaf, Schema
from minefleet.core.tree import flatten
from minefleet.policies import Policy, build
from minefleet.policies.weight_arrays import load_numpy, to_numpy
from minefleet_actor.inference.weight_memory_format import lay_out

SCHEMA = Schema(
    obs={
        "image": Leaf(kind="box", shape=(36, 36, 3), dtype="uint8", low=0, high=255),
        "vector": Leaf(kind="box", shape=(3,), dtype="float32"),
    },
    action=Leaf(kind="discrete", shape=(), dtype="int64", categories=(5,)),
)
ROWS = 3


def policy_of(seed: int) -> Policy:
    torch.manual_seed(seed)
    return build(PolicyConfig(hidden_size=8, conv_channels=[4, 6, 8], gru_size=8), SCHEMA)


@torch.inference_mode()
def computed(policy: Policy, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(9)
    obs = {"image": torch.randint(256, (ROWS, 1, 36, 36, 3), dtype=torch.uint8), "vector": torch.randn(ROWS, 1, 3)}
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        output, state = policy(obs, policy.initial_state(ROWS), torch.zeros(ROWS, 1, dtype=torch.bool))
    return [*flatten(output.params).values(), output.value, *flatten(state).values()]


def lies_by_columns(policy: Policy) -> bool:
    matrices = [parameter for parameter in policy.parameters() if parameter.ndim == 2]
    kernels = [parameter for parameter in policy.parameters() if parameter.ndim == 4]
    assert len(matrices) >= 6 and len(kernels) == 3
    return all(matrix.t().is_contiguous() for matrix in matrices) and all(
        kernel.is_contiguous(memory_format=torch.channels_last) for kernel in kernels
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_policy_in_another_memory_format_computes_the_same(dtype: torch.dtype) -> None:
    policy = policy_of(0)
    wanted = computed(deepcopy(policy), dtype)
    lay_out(policy)
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 0.02}[dtype]
    for mine, plain in zip(computed(policy, dtype), wanted, strict=True):
        torch.testing.assert_close(mine, plain, rtol=tolerance, atol=tolerance)


def test_new_weights_take_the_memory_format_of_the_old_ones() -> None:
    policy, other = policy_of(0), policy_of(1)
    assert not lies_by_columns(policy)
    lay_out(policy)
    load_numpy(policy, to_numpy(other))
    assert lies_by_columns(policy)
    for name, tensor in other.state_dict().items():
        assert torch.equal(policy.state_dict()[name], tensor)
    for mine, plain in zip(computed(policy), computed(other), strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-6, atol=1e-6)
