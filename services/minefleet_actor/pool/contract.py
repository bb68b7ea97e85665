"""What a pool of environments promises to whoever acts in it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from minefleet.errors import GaveUpError
from minefleet.tree import Tree
from minefleet_worker.frames import Ending, Failure, Kind

__all__ = ["Ending", "EnvGaveUpError", "EnvStartError", "Failure", "Kind", "Pool", "Ready", "Slots"]

Slots = NDArray[np.intp]


class EnvStartError(GaveUpError):
    """An environment failed when it was made for the first time."""


class EnvGaveUpError(GaveUpError):
    """A slot failed too often in a row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """What has become of some slots' commands; n of them."""

    slots: Slots
    """[n] intp, rising."""
    kind: NDArray[np.uint8]
    """[n] uint8, each a `Kind`."""
    reward: NDArray[np.float32]
    """[n] float32; 0 unless a step was done."""
    terminated: NDArray[np.bool_]
    """[n] bool; false unless a step was done."""
    truncated: NDArray[np.bool_]
    """[n] bool; false unless a step was done."""
    endings: Mapping[int, Ending]
    """For each slot whose episode has ended or failed; of one that failed, its task."""
    failures: Mapping[int, Failure]
    """For each slot that failed, why."""


class Pool(Protocol):
    """Environments behind numbered slots."""

    @property
    def num_slots(self) -> int:
        """Number of environments."""

    @property
    def obs(self) -> Tree:
        """Tree of [num_slots, ...]: each slot's latest observation, until its next command."""

    @property
    def resting(self) -> int:
        """Number of slots that failed so often that they are left alone for a while."""

    def start(self) -> None:
        """Makes the environments. Raises `EnvStartError` with the traceback if one fails."""

    def step(self, slots: Slots, action: Tree) -> None:
        """Starts a step of each slot and returns; `action` is a tree of [len(slots), ...]."""

    def reset(self, slots: Slots) -> None:
        """Starts a new episode in each slot and returns. No slot is ever reset without being asked."""

    def wait(self, timeout_s: float) -> Ready:
        """Waits until a slot has news, `wake` is called or the time is over. Raises `EnvGaveUpError`."""

    def wake(self) -> None:
        """Makes `wait` return, the next one if none is under way. May be called from any thread, at any time."""

    def close(self) -> None:
        """Ends everything the pool has started. May be called again."""
