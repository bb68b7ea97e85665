"""The outputs of a policy for a batch of slots: as it computes them, and as the loop records them.

Shape legend: n = slots in a batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minefleet.core.tree import Tree, tree_map

Slots = NDArray[np.intp]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyStep:
    """The policy's decision for a batch; arrays of [n, ...]."""

    slots: Slots
    keeps: Mask
    """False where only the value was wanted."""
    action: Tree
    logp: NDArray[np.float32]
    value: NDArray[np.float32]
    """In reward units."""
    first: Mask
    before: Mapping[int, Tree]
    """The recurrent state before the step, without batch and time, of the slots whose state was wanted."""
    version: NDArray[np.uint32]
    """The version that has computed a row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyEvaluation:
    """Outputs of a forward pass with the weights of one version: tensors of [n, 1, ...]."""

    params: Tree
    """Of the distribution of actions."""
    value: Tensor
    """In reward units."""
    encoded: dict[str, Tensor]
    before: Mapping[int, Tree]
    """As in `PolicyStep`."""


def joined(parts: Sequence[PolicyEvaluation]) -> PolicyEvaluation:
    """The rows of all parts, one after another."""
    trees = [{"params": part.params, "value": part.value, "encoded": part.encoded} for part in parts]
    before = {slot: state for part in parts for slot, state in part.before.items()}
    return PolicyEvaluation(before=before, **tree_map(lambda *leaves: torch.cat(leaves), *trees))
