"""The contents of a checkpoint besides weights and counters: the optimizer's state as named arrays, and back."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from minefleet.core.errors import ConfigError
from minefleet.policies import Policy
from minefleet.runs.checkpoint_files import Checkpoint, CheckpointState

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainState:
    """The contents of a checkpoint besides the weights and the counters."""

    optimizer: Arrays
    rng: Arrays
    scaler: Arrays | None
    reference: Arrays | None
    carried: Arrays | None


def checkpoint_of(
    state: CheckpointState, policy: Mapping[str, NDArray[Any]], train_state: TrainState, run: str
) -> Checkpoint:
    """Puts a checkpoint together."""
    rest = {field.name: getattr(train_state, field.name) for field in fields(train_state)}
    return Checkpoint(state=state, policy=policy, run=run, **rest)


def optimizer_tensors(policy: Policy, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimizer's state itself, under `parameter/moment`. The optimizer holds `policy.parameters()` in order."""
    names = [name for name, _ in policy.named_parameters()]
    return {
        f"{names[index]}/{key}": tensor
        for index, moments in optimizer.state_dict()["state"].items()
        for key, tensor in moments.items()
    }


def load_optimizer(policy: Policy, optimizer: torch.optim.Optimizer, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Inverts a copy of `optimizer_tensors`; the hyper-parameters stay those of the optimizer.

    Raises:
        ConfigError: If there is state for a parameter that the policy lacks.
    """
    index_of = {name: index for index, (name, _) in enumerate(policy.named_parameters())}
    state: dict[int, dict[str, torch.Tensor]] = {}
    for path, array in arrays.items():
        name, _, key = path.rpartition("/")
        if name not in index_of:
            raise ConfigError(f"the checkpoint's optimizer has state for {name}, which the policy lacks")
        state.setdefault(index_of[name], {})[key] = torch.tensor(array)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def scaler_arrays(scaler: torch.amp.GradScaler) -> Arrays | None:
    """The scaler's state; None where it does nothing."""
    return {name: np.array(value) for name, value in scaler.state_dict().items()} or None


def load_scaler(scaler: torch.amp.GradScaler, arrays: Mapping[str, NDArray[Any]] | None) -> None:
    """Inverts `scaler_arrays`. Without arrays, or where the scaler does nothing, it stays as it is."""
    if arrays and scaler.is_enabled():
        scaler.load_state_dict({name: array.item() for name, array in arrays.items()})


@torch.no_grad()
def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Distinguishes tensors, almost surely: by the sum of the words of each, whatever the order of summing."""
    # By name: a checkpoint is read in any order.
    sums = [_words(tensor).sum(dtype=torch.int64).cpu() for _, tensor in sorted(tensors.items())]
    return hashlib.blake2b(torch.tensor(sums, dtype=torch.int64).numpy().tobytes(), digest_size=16).hexdigest()


def _words(tensor: torch.Tensor) -> torch.Tensor:
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(kinds[tensor.element_size()])
