"""Foretells when environments will answer, to say for how long a batch should wait for them."""

import numpy as np
from numpy.typing import NDArray

Slots = NDArray[np.intp]
Seconds = NDArray[np.float64]

MEMORY = 0.8
"""Share of the estimate that an answer keeps."""
LATE = 0.1
"""An environment that is overdue by more than this share of a pass is not waited for any longer."""


class Forecast:
    """When each slot was asked to step, and how long its steps take."""

    def __init__(self, slots: int) -> None:
        self._began_s = np.full(slots, np.nan)
        self._takes_s = np.full(slots, np.nan)

    def stepped(self, slots: Slots, now_s: float) -> None:
        """Notes that the slots' environments have begun to step."""
        self._began_s[slots] = now_s

    def answered(self, slots: Slots, now_s: float) -> None:
        """Notes that they have answered, if they stepped."""
        took_s, known_s = now_s - self._began_s[slots], self._takes_s[slots]
        estimate_s = np.where(np.isnan(known_s), took_s, MEMORY * known_s + (1 - MEMORY) * took_s)
        self._takes_s[slots] = np.where(np.isnan(took_s), known_s, estimate_s)
        self._began_s[slots] = np.nan

    def patience_s(self, ready: int, pass_s: float, now_s: float) -> float:
        """How long a batch should wait for more, seconds."""
        due_s = self._began_s + self._takes_s - now_s
        return patience_s(ready, pass_s, due_s[due_s > -LATE * pass_s])


def patience_s(ready: int, pass_s: float, due_s: Seconds) -> float:
    """How long a batch should wait for more, so that environments wait as little as can be, in sum.

    Waiting until the k-th of those that are on their way has come, at x, costs the n that are ready x each. It saves
    each of the k F - x, what would be left of the pass that they come too late for: the best x maximises

        k (F - x) - n x

    and is 0 if that is never positive.

    Args:
        ready: n, environments that wait.
        pass_s: F, seconds that a pass takes however few it is for.
        due_s: When the others will come, seconds from now, in any order; negative for one that is late.
    """
    due_s = np.sort(np.maximum(due_s[due_s < pass_s], 0.0))
    saved = np.arange(1, len(due_s) + 1) * (pass_s - due_s) - ready * due_s
    return float(due_s[saved.argmax()]) if len(due_s) and saved.max() > 0 else 0.0
