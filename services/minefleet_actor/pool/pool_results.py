"""Answers of pools of environments, and the errors that end them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minefleet.core.errors import GaveUpError
from minefleet_env.process_messages import EpisodeEnd, Failure, Kind

__all__ = ["EnvGaveUpError", "EnvStartError", "EpisodeEnd", "Failure", "Kind", "Ready", "Slots"]

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
    discounted_reward: NDArray[np.float32]
    """[n] float32, Σᵢ γⁱ rᵢ over the environment's own steps within the step, if one was done."""
    duration: NDArray[np.uint32]
    """[n] uint32, how many those are."""
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
