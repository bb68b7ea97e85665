"""Decodes the large parts of fragments, observations and recurrent states, into tensors when they are needed.

Shape legend: b = rows that are stacked, S = observations seen in the longest row of the batch, T = steps of a fragment,
K = its steps with a `cut_obs`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minefleet.core.fragment import Fragment, LargeFields
from minefleet.core.tree import Tree, flatten, unflatten

Spread = Callable[[Callable[[int], None], Iterable[int]], Iterable[None]]
"""`map`, or that of a pool of threads."""
Row = tuple[Fragment, Callable[[], LargeFields]]
"""A fragment, of which only the small part is looked at, and what returns the large part."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UnpackedObs:
    """The large parts of b fragments."""

    seen: Tree
    """Tree of [b, S, ...], the observations in the order of time; padding is zeros."""
    recurrent_state: Tree
    """Tree of [b, ...], before the first step; {} without recurrence."""


def places(steps: Fragment) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places of a fragment's observations in the order of time: [T] of `obs`, and [K] of `cut_obs`."""
    numbers = np.arange(len(steps))
    position = numbers + np.searchsorted(steps.cut_index, numbers)
    return position, position[steps.cut_index] + 1


def stack(rows: Sequence[Row], width: int, *, pinned: bool = False, spread: Spread = map) -> UnpackedObs:
    """Unpacks rows and puts them side by side.

    Args:
        rows: Of a batch.
        width: S.
        pinned: Whether the memory is page-locked, so that CUDA copies it without waiting.
        spread: Unpacks all but the first row.
    """
    fragments, unpack = zip(*rows, strict=True)
    first: LargeFields = unpack[0]()
    seen = {
        path: _empty((len(rows), width, *leaf.shape[1:]), leaf.dtype, pinned)
        for path, leaf in flatten(first.obs).items()
    }
    state = {
        path: _empty((len(rows), *leaf.shape), leaf.dtype, pinned)
        for path, leaf in flatten(first.recurrent_state).items()
    }

    def write(index: int, large: LargeFields) -> None:
        position, after = places(fragments[index])
        for path, leaf in flatten(large.obs).items():
            seen[path].numpy()[index, position] = leaf
        for path, leaf in flatten(large.cut_obs).items():
            seen[path].numpy()[index, after] = leaf
        for path, leaf in flatten(large.recurrent_state).items():
            state[path].numpy()[index] = leaf
        for buffer in seen.values():
            buffer.numpy()[index, len(position) + len(after) :] = 0

    write(0, first)
    for _ in spread(lambda index: write(index, unpack[index]()), range(1, len(rows))):
        pass
    return UnpackedObs(seen=unflatten(seen), recurrent_state=unflatten(state))


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any], pinned: bool) -> Tensor:
    if not pinned:
        return torch.from_numpy(np.empty(shape, dtype))
    return torch.empty(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype, pin_memory=True)
