"""The arrays of a pool: row i of each belongs to slot i. They lie in one block of memory that its processes share.

The block is an anonymous file (memfd): it needs no room in /dev/shm, and goes with the last process that maps it.
"""

from __future__ import annotations

import math
import mmap
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from minefleet_env.process_messages import TASK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

ALIGNMENT_BYTES = 64
_PER_SLOT: dict[str, Any] = {
    "reward": np.float32,
    "discounted_reward": np.float32,
    "duration": np.uint32,
    "terminated": np.bool_,
    "truncated": np.bool_,
    "seed": np.int64,
    "began_s": np.float64,
    "film": np.bool_,
    "task": np.dtype(f"S{TASK_BYTES}"),
}


@dataclass(frozen=True)
class Arrays:
    """N = slots. A slot's rows belong to its process while a command is under way, and else to the pool."""

    obs: Mapping[str, NDArray[Any]]
    """Per leaf's path, [N, ...]: the latest observation."""
    action: Mapping[str, NDArray[Any]]
    """Per leaf's path, [N, ...]: the action to take."""
    reward: NDArray[np.float32]
    """[N] float32, of the latest step."""
    discounted_reward: NDArray[np.float32]
    """[N] float32, Σᵢ γⁱ rᵢ over the environment's own steps within the latest step; `reward` where that is one."""
    duration: NDArray[np.uint32]
    """[N] uint32, how many steps of its own the environment took in the latest step."""
    terminated: NDArray[np.bool_]
    """[N] bool, of the latest step."""
    truncated: NDArray[np.bool_]
    """[N] bool, of the latest step."""
    seed: NDArray[np.int64]
    """[N] int64, seed of the next reset; -1 for none."""
    began_s: NDArray[np.float64]
    """[N] float64, when the latest command was begun, on the monotonic clock that all processes share, seconds."""
    task: NDArray[np.bytes_]
    """[N] bytes, the task of the next episode, UTF-8; empty where the environment chooses."""
    film: NDArray[np.bool_]
    """[N] bool, whether to draw `frame` after each reset and step."""
    frame: NDArray[np.uint8]
    """[N, height, width, 3] uint8, as `render` showed it after the latest reset or step; zeros where that failed. Of
    height and width 0 in a pool that does not film so."""


def create(schema: Mapping[str, Any], num_slots: int, frame_shape: Sequence[int] | None = None) -> int:
    """Makes the block, filled with zeros, and returns its file descriptor."""
    memory = os.memfd_create("minefleet-pool")
    os.ftruncate(memory, _size_bytes(schema, num_slots, frame_shape))
    return memory


def attach(memory: int, schema: Mapping[str, Any], num_slots: int, frame_shape: Sequence[int] | None = None) -> Arrays:
    """Maps the block; it stays mapped for as long as an array over it lives."""
    size_bytes = _size_bytes(schema, num_slots, frame_shape)
    return _view(schema, num_slots, frame_shape, mmap.mmap(memory, size_bytes))


def private(schema: Mapping[str, Any], num_slots: int, frame_shape: Sequence[int] | None = None) -> Arrays:
    """The same arrays in this process's own memory."""
    return _view(schema, num_slots, frame_shape, bytearray(_size_bytes(schema, num_slots, frame_shape)))


def _size_bytes(schema: Mapping[str, Any], num_slots: int, frame_shape: Sequence[int] | None) -> int:
    *_, (_, _, shape, dtype, offset) = _fields(schema, num_slots, frame_shape)
    return max(offset + math.prod(shape) * dtype.itemsize, 1)


def _view(
    schema: Mapping[str, Any], num_slots: int, frame_shape: Sequence[int] | None, block: mmap.mmap | bytearray
) -> Arrays:
    trees: dict[str, dict[str, NDArray[Any]]] = {"obs": {}, "action": {}, "": {}}
    for tree, name, shape, dtype, offset in _fields(schema, num_slots, frame_shape):
        trees[tree][name] = np.frombuffer(block, dtype, math.prod(shape), offset).reshape(shape)
    return Arrays(obs=trees["obs"], action=trees["action"], **trees[""])


def _fields(
    schema: Mapping[str, Any], num_slots: int, frame_shape: Sequence[int] | None
) -> Iterator[tuple[str, str, tuple[int, ...], np.dtype[Any], int]]:
    """Yields each array's tree, name in there, shape, dtype and offset."""
    rows: list[tuple[str, str, Sequence[int], Any]] = [
        (tree, path, leaf["shape"], leaf["dtype"]) for tree in ("obs", "action") for path, leaf in schema[tree].items()
    ]
    rows.append(("", "frame", frame_shape or (0, 0, 3), np.uint8))
    rows += [("", name, (), dtype) for name, dtype in _PER_SLOT.items()]
    offset = 0
    for tree, name, row_shape, row_dtype in rows:
        dtype, shape = np.dtype(row_dtype), (num_slots, *row_shape)
        yield tree, name, shape, dtype, offset
        offset += math.ceil(math.prod(shape) * dtype.itemsize / ALIGNMENT_BYTES) * ALIGNMENT_BYTES
