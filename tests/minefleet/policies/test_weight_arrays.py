"""Weights as arrays: a round trip, and clear words when they do not fit."""

import copy

import numpy as np
import pytest
import torch

from minefleet.config import PolicyConfig
from minefleet.core.errors import ConfigError, ContractError
from minefleet.core.schema import Leaf, Schema
from minefleet.policies import Policy, build
from minefleet.policies.layers.mergeable_moments import moments_of
from minefleet.policies.weight_arrays import (
    architecture,
    architecture_fingerprint,
    check_state,
    differences,
    load_numpy,
    rounded_tensors,
    to_numpy,
)
from minefleet.rpc.weights.manifest import describe

SCHEMA = Schema(
    obs={
        "image": Leaf(kind="box", shape=(36, 36, 3), dtype="uint8"),
        "n": Leaf(kind="box", shape=(2,), dtype="float32"),
    },
    action=Leaf(kind="multi_discrete", shape=(2,), dtype="int64", categories=(3, 2)),
)


def policy(seed: int, hidden_size: int = 8) -> Policy:
    torch.manual_seed(seed)
    return build(PolicyConfig(hidden_size=hidden_size, conv_channels=[2, 2, 2], gru_size=4), SCHEMA)


def test_weights_and_normaliser_survive_the_round_trip_through_read_only_arrays() -> None:
    source, target = policy(0), policy(1)
    source.value_norm.absorb(moments_of(torch.randn(8) * 5 + 2), source.value_head)
    weights = to_numpy(source)
    for array in weights.values():
        array.flags.writeable = False
    load_numpy(target, dict(reversed(weights.items())))
    assert list(to_numpy(target)) == list(weights)
    assert all(np.array_equal(array, weights[name]) for name, array in to_numpy(target).items())
    assert target.value_norm.std == source.value_norm.std


def test_to_numpy_copies_do_not_follow_the_policy() -> None:
    source = policy(0)
    weights = to_numpy(source)
    before = copy.deepcopy(weights)
    with torch.no_grad():
        for tensor in source.state_dict().values():
            tensor.add_(1)
    assert all(np.array_equal(weights[name], before[name]) for name in weights)


def test_to_numpy_arrays_are_contiguous_and_float() -> None:
    assert all(array.flags.c_contiguous for array in to_numpy(policy(0)).values())
    assert {array.dtype.name for array in to_numpy(policy(0)).values()} == {"float32", "float64"}


def test_architecture_fingerprint_depends_on_the_architecture_alone() -> None:
    ours = architecture_fingerprint(architecture(policy(0)))
    assert ours == architecture_fingerprint(architecture(policy(1)))
    assert ours != architecture_fingerprint(architecture(policy(0, hidden_size=9)))
    reordered = dict(reversed(architecture(policy(0)).items()))
    assert ours != architecture_fingerprint(reordered)


def test_architecture_fingerprint_is_the_one_that_travels_with_the_weights() -> None:
    manifest, _ = describe(to_numpy(policy(0)))
    assert manifest.architecture_fingerprint == architecture_fingerprint(architecture(policy(0)))


def test_architecture_differences_name_each_tensor_and_both_sides() -> None:
    ours = {"a": ("float32", (2, 3)), "b": ("float32", (2,))}
    theirs = {"a": ("float32", (2, 4)), "c": ("float64", ())}
    assert differences(ours, theirs) == (
        "a is float32[2, 3] here and float32[2, 4] there; b is float32[2] here and missing there; "
        "c is missing here and float64[] there"
    )
    assert differences(ours, ours) == ""
    assert differences(ours, dict(reversed(ours.items()))) == "the same tensors in another order"


@pytest.mark.parametrize("fault", ["missing", "unknown", "shape", "dtype"])
def test_weights_that_do_not_fit_are_refused_and_change_nothing(fault: str) -> None:
    target = policy(0)
    before = to_numpy(target)
    weights = to_numpy(policy(1))
    bias = weights.pop("value_head.bias")
    if fault == "unknown":
        weights |= {"value_head.bias": bias, "value_head.bias2": bias}
    elif fault != "missing":
        weights["value_head.bias"] = bias[None] if fault == "shape" else bias.astype(np.float64)
    with pytest.raises(ContractError, match=r"value_head\.bias"):
        load_numpy(target, weights)
    assert all(np.array_equal(array, before[name]) for name, array in to_numpy(target).items())


def test_float32_parameters_are_rounded_and_buffers_never() -> None:
    source = policy(0)
    source.register_buffer("table", torch.zeros(3))
    source.register_parameter("temperature", torch.nn.Parameter(torch.zeros(2, dtype=torch.float64)))
    parameters = {name for name, _ in source.named_parameters()}
    assert rounded_tensors(source, "keep") == frozenset()
    assert rounded_tensors(source, "bfloat16") == parameters - {"temperature"}
    assert architecture(source).keys() - parameters >= {"table", "value_norm.mean"}


def test_exact_tensors_of_a_policy_are_not_rounded_under_any_name() -> None:
    source = policy(0)
    everything = rounded_tensors(source, "bfloat16")
    source.register_parameter("alias", source.get_parameter("value_head.weight"))
    source.exact_tensors = ("value_head.weight", "value_norm.mean")
    check_state(source)
    assert rounded_tensors(source, "bfloat16") == everything - {"value_head.weight"}


def test_check_state_refuses_a_policy_that_cannot_travel_naming_the_tensor() -> None:
    source = policy(0)
    source.exact_tensors = ("value_haed.weight",)
    with pytest.raises(ConfigError, match=r"exact_tensors names 'value_haed\.weight', which the policy's state lacks"):
        check_state(source)
    source = policy(0)
    source.value_head.to(torch.bfloat16)
    with pytest.raises(ConfigError, match=r"value_head\.weight is bfloat16, .* keep it in float32"):
        check_state(source)
