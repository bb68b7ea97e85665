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


@dataclass(frozen=True, kw_only=True, slots=True)
class CollatedRow:
    """A fragment, and where its observations lie in the order of time."""

    steps: Fragment
    """The small part of it."""
    unpack: Callable[[], LargeFields]
    """Returns the large part of it."""
    position: NDArray[np.int64]
    """[T], where `obs` goes."""
    after: NDArray[np.int64]
    """[K], where `cut_obs` goes."""

    @property
    def width(self) -> int:
        """Observations seen."""
        return len(self.position) + len(self.after)


@dataclass(frozen=True, kw_only=True, slots=True)
class LazyObs:
    """The large parts of b fragments."""

    seen: Tree
    """Tree of [b, S, ...], the observations in the order of time; padding is zeros."""
    recurrent_state: Tree
    """Tree of [b, ...], before the first step; {} without recurrence."""


def stack(rows: Sequence[CollatedRow], width: int, *, pinned: bool = False, spread: Spread = map) -> LazyObs:
    """Unpacks rows and puts them side by side.

    Args:
        rows: Of a batch.
        width: S.
        pinned: Whether the memory is page-locked, so that CUDA copies it without waiting.
        spread: Unpacks all but the first row.
    """
    first = rows[0].unpack()
    seen = {
        path: _empty((len(rows), width, *leaf.shape[1:]), leaf.dtype, pinned)
        for path, leaf in flatten(first.obs).items()
    }
    state = {
        path: _empty((len(rows), *leaf.shape), leaf.dtype, pinned)
        for path, leaf in flatten(first.recurrent_state).items()
    }

    def write(index: int, large: LargeFields) -> None:
        row = rows[index]
        for path, leaf in flatten(large.obs).items():
            seen[path].numpy()[index, row.position] = leaf
        for path, leaf in flatten(large.cut_obs).items():
            seen[path].numpy()[index, row.after] = leaf
        for path, leaf in flatten(large.recurrent_state).items():
            state[path].numpy()[index] = leaf
        for buffer in seen.values():
            buffer.numpy()[index, row.width :] = 0

    write(0, first)
    for _ in spread(lambda index: write(index, rows[index].unpack()), range(1, len(rows))):
        pass
    return LazyObs(seen=unflatten(seen), recurrent_state=unflatten(state))


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any], pinned: bool) -> Tensor:
    if not pinned:
        return torch.from_numpy(np.empty(shape, dtype))
    return torch.empty(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype, pin_memory=True)
