"""Random observations, to ask a policy with."""

import torch
from torch import Tensor

from minefleet.core.schema import Leaf, Schema
from minefleet.core.tree import Tree, tree_map

BATCH, STEPS = 2, 3
BOUND = 3.0
"""Of numbers that have none."""


def random_observation(schema: Schema, generator: torch.Generator) -> Tree:
    """Random values of each leaf, [BATCH, STEPS, ...]; texts are empty, since a policy may take only some."""
    return tree_map(lambda leaf: _values(leaf, generator), schema.obs)


def _values(leaf: Leaf, generator: torch.Generator) -> Tensor:
    dtype = getattr(torch, leaf.dtype)
    if leaf.kind == "text":
        return torch.zeros(BATCH, STEPS, *leaf.shape, dtype=dtype)
    part = torch.rand(BATCH, STEPS, *leaf.shape, generator=generator, dtype=torch.float64)
    if leaf.categories:
        return (part * torch.tensor(leaf.categories).reshape(leaf.shape)).floor().to(dtype)
    low, high = (_bound(bound, leaf) for bound in (leaf.low, leaf.high))
    if dtype.is_floating_point:
        return (low + part * (high - low)).to(dtype)
    return (low + part * (high - low + 1)).floor().to(dtype)


def _bound(bound: float | tuple[float, ...], leaf: Leaf) -> Tensor:
    """One for all elements, or [*shape]."""
    limits = torch.tensor(bound, dtype=torch.float64).nan_to_num(posinf=BOUND, neginf=-BOUND)
    return limits.reshape(leaf.shape) if isinstance(bound, tuple) else limits
