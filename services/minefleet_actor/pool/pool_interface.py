"""The interface of a pool of environments."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from minefleet.core.errors import GaveUpError
from minefleet.core.tree import Tree
from minefleet_env.packets import EpisodeEnd, Failure, Kind

__all__ = ["EnvGaveUpError", "EnvStartError", "EpisodeEnd", "Failure", "Kind", "Pool", "Ready", "Slots"]

Slots = NDArray[np.intp]


class EnvStartError(GaveUpError):
    """An environment failed before any was made."""


class EnvGaveUpError(GaveUpError):
    """Every slot fails again and again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """The outcomes of some slots' commands; n of them. Each command is answered once, by its result or a failure."""

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
    endings: Mapping[int, EpisodeEnd]
    """For each slot whose episode has ended or failed; of one that failed, its task."""
    tasks: Mapping[int, str]
    """For each slot whose episode has begun, its task, if it has one."""
    failures: Mapping[int, Failure]
    """For each slot that failed, why; reported once, and only when nothing can change the slot's rows any more."""
    idle_s: float = 0.0
    """Seconds that the pool only waited for this."""


class Pool(Protocol):
    """Environments behind numbered slots.

    A slot has news only of what it was asked to do, or of a failure. A failure takes nothing but its slot's episode:
    the failed step has no result, and the slot wants a reset. Environments are replaced without being asked, after
    failures and between episodes; a reset then takes as long as that does.
    """

    @property
    def num_slots(self) -> int:
        """Number of environments."""

    @property
    def obs(self) -> Tree:
        """Tree of [num_slots, ...]: each slot's latest observation, until its next command."""

    @property
    def cooling_down(self) -> int:
        """Number of slots that failed so often that they are left alone for a while."""

    @property
    def rests_until_s(self) -> NDArray[np.float64]:
        """[num_slots] float64: when each slot's pause after failures is over, on the monotonic clock."""

    @property
    def frames(self) -> NDArray[np.uint8]:
        """[num_slots, H, W, 3] uint8: what each filmed slot renders, until its next command; no pixels if none does."""

    def film(self, slot: int, on: bool) -> None:
        """Makes a slot render its frames from its next reset on, or no longer; in a pool that can."""

    def start(self) -> None:
        """Starts making the environments, and returns when one is made. Raises `EnvStartError` if one fails before."""

    def step(self, slots: Slots, action: Tree) -> None:
        """Asks for a step of each slot, from the next `wait` on; `action` is a tree of [len(slots), ...]."""

    def reset(self, slots: Slots) -> None:
        """Asks for a new episode in each slot, from the next `wait` on. No slot is ever reset without being asked.

        It begins when the environment is there, its pause after failures is over and `max_resets_at_once` allows it.
        """

    def wait(self, timeout_s: float) -> Ready:
        """Waits until a slot has news, `wake` is called or the time is over. Raises `EnvGaveUpError`."""

    def wake(self) -> None:
        """Makes `wait` return, the next one if none is under way. May be called from any thread, at any time."""

    def close(self) -> None:
        """Ends everything the pool has started. May be called again."""
