"""The arrays of a pool: row i of each belongs to slot i. They lie in one block of memory that its processes share.

The block is an anonymous file (memfd): it needs no room in /dev/shm, and goes with the last process that maps it.
"""

import math
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minefleet.schema import Leaf, Schema
from minefleet.tree import Tree, flatten, unflatten

ALIGNMENT_BYTES = 64
_PER_SLOT = {
    "reward": np.float32,
    "terminated": np.bool_,
    "truncated": np.bool_,
    "seed": np.int64,
    "began_s": np.float64,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrays:
    """N = slots. A slot's rows belong to its process while a command is under way, and else to the pool."""

    obs: Tree
    """Tree of [N, ...]: the latest observation."""
    action: Tree
    """Tree of [N, ...]: the action to take."""
    reward: NDArray[np.float32]
    """[N] float32, of the latest step."""
    terminated: NDArray[np.bool_]
    """[N] bool, of the latest step."""
    truncated: NDArray[np.bool_]
    """[N] bool, of the latest step."""
    seed: NDArray[np.int64]
    """[N] int64, seed of the next reset; -1 for none."""
    began_s: NDArray[np.float64]
    """[N] float64, when the latest command was begun, on the monotonic clock that all processes share, seconds."""


def create(schema: Schema, num_slots: int) -> int:
    """Makes the block, filled with zeros, and returns its file descriptor."""
    memory = os.memfd_create("minefleet-pool")
    os.ftruncate(memory, _size_bytes(schema, num_slots))
    return memory


def attach(memory: int, schema: Schema, num_slots: int) -> Arrays:
    """Maps the block; it stays mapped for as long as an array over it lives."""
    return _view(schema, num_slots, mmap.mmap(memory, _size_bytes(schema, num_slots)))


def private(schema: Schema, num_slots: int) -> Arrays:
    """The same arrays in this process's own memory."""
    return _view(schema, num_slots, bytearray(_size_bytes(schema, num_slots)))


def _size_bytes(schema: Schema, num_slots: int) -> int:
    *_, (_, shape, dtype, offset) = _fields(schema, num_slots)
    return max(offset + math.prod(shape) * dtype.itemsize, 1)


def _view(schema: Schema, num_slots: int, block: mmap.mmap | bytearray) -> Arrays:
    arrays: dict[str, NDArray[Any]] = {
        path: np.frombuffer(block, dtype, math.prod(shape), offset).reshape(shape)
        for path, shape, dtype, offset in _fields(schema, num_slots)
    }
    return Arrays(**unflatten(arrays))


def _fields(schema: Schema, num_slots: int) -> Iterator[tuple[str, tuple[int, ...], np.dtype[Any], int]]:
    """Yields each array's path, shape, dtype and offset."""
    leaves: dict[str, Leaf] = flatten({"obs": schema.obs, "action": schema.action})
    rows = {path: (leaf.shape, np.dtype(leaf.dtype)) for path, leaf in leaves.items()}
    rows |= {name: ((), np.dtype(dtype)) for name, dtype in _PER_SLOT.items()}
    offset = 0
    for path, (shape, dtype) in rows.items():
        yield path, (num_slots, *shape), dtype, offset
        size_bytes = num_slots * math.prod(shape) * dtype.itemsize
        offset += math.ceil(size_bytes / ALIGNMENT_BYTES) * ALIGNMENT_BYTES
