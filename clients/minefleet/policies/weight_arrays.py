"""A policy's weights as NumPy arrays, and its architecture: ordered names, dtypes and shapes of its state.

The state is parameters and buffers, so the statistics of `ValueNorm` travel with the weights.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from minefleet.core.errors import ConfigError, ContractError
from minefleet.core.protobuf_dtypes import NUMPY_DTYPES
from minefleet.policies.policy import Policy
from minefleet.rpc.weights import manifest

Architecture: TypeAlias = dict[str, tuple[str, tuple[int, ...]]]
"""Name to (dtype, shape), in the policy's order."""
Weights: TypeAlias = dict[str, NDArray[Any]]
"""Name to array, in the policy's order."""

_DTYPES = frozenset(dtype.name for dtype in NUMPY_DTYPES.values())


def architecture(policy: nn.Module) -> Architecture:
    """Describes the policy's state."""
    return {
        name: (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in policy.state_dict().items()
    }


def architecture_fingerprint(described: Architecture) -> str:
    """Equal for equal architectures, order included, whatever the machine."""
    return manifest.fingerprint_of(described)


def differences(ours: Architecture, theirs: Architecture) -> str:
    """Describes the tensors that differ; empty if none."""
    lines = [
        f"{name} is {_words(ours.get(name))} here and {_words(theirs.get(name))} there"
        for name in dict.fromkeys((*ours, *theirs))
        if ours.get(name) != theirs.get(name)
    ]
    if not lines and list(ours) != list(theirs):
        return "the same tensors in another order"
    return "; ".join(lines)


def check_state(policy: Policy) -> None:
    """Refuses a policy whose state cannot travel.

    Raises:
        ConfigError: If a tensor's dtype has no place on the wire, or `exact_tensors` names what is not there.
    """
    described = architecture(policy)
    for name, (dtype, _) in described.items():
        if dtype not in _DTYPES:
            raise ConfigError(
                f"the policy's {name} is {dtype}, which cannot travel; keep it in float32 "
                "(train_config.wire_dtype=bfloat16 halves what is sent)"
            )
    unknown = set(policy.exact_tensors) - described.keys()
    if unknown:
        raise ConfigError(f"exact_tensors names {min(unknown)!r}, which the policy's state lacks")


def rounded_tensors(policy: Policy, wire_dtype: str) -> frozenset[str]:
    """Names of the tensors that `train_config.wire_dtype` rounds: float32 parameters that need not be exact.

    A parameter with several names is exact if one of them is.
    """
    if wire_dtype == "keep":
        return frozenset()
    parameters = dict(policy.named_parameters(remove_duplicate=False))
    exact = {id(parameters[name]) for name in policy.exact_tensors if name in parameters}
    return frozenset(
        name
        for name, parameter in parameters.items()
        if parameter.dtype == torch.float32 and id(parameter) not in exact
    )


def to_numpy(policy: nn.Module) -> Weights:
    """Copies the policy's state to the CPU."""
    return {name: np.array(tensor.detach().cpu().numpy()) for name, tensor in policy.state_dict().items()}


def load_numpy(policy: nn.Module, weights: Mapping[str, NDArray[Any]]) -> None:
    """Copies weights into the policy, on its device. The order of `weights` does not matter.

    Raises:
        ContractError: If a tensor is missing, unknown, or of another dtype or shape; the policy is as before.
    """
    ours = architecture(policy)
    ordered = {name: weights[name] for name in (*ours, *weights) if name in weights}
    theirs = {name: (array.dtype.name, tuple(array.shape)) for name, array in ordered.items()}
    if theirs != ours:
        raise ContractError(f"the weights are not this policy's: {differences(ours, theirs)}")
    policy.load_state_dict({name: torch.tensor(array) for name, array in ordered.items()})


def _words(entry: tuple[str, tuple[int, ...]] | None) -> str:
    return "missing" if entry is None else f"{entry[0]}{list(entry[1])}"
