"""Decides when each slot's environment is recreated, for its age or its memory."""

import numpy as np
from numpy.typing import NDArray


class RecycleSchedule:
    """Every slot is due once per interval, at a point that is its own, so that never all are made anew at once."""

    def __init__(self, num_slots: int, interval_s: float, now_s: float) -> None:
        self._interval_s = interval_s
        self._first_s = now_s + interval_s * np.arange(1, num_slots + 1) / num_slots
        self._due_s = np.full(num_slots, np.inf)
        self.renew(range(num_slots), now_s)

    def is_due(self, slots: range, now_s: float) -> NDArray[np.bool_]:
        """The slots whose environments are to be made anew."""
        return self._due_s[slots.start : slots.stop] <= now_s

    def expire(self, slots: range) -> None:
        """Makes the slots due."""
        self._due_s[slots.start : slots.stop] = -np.inf

    def renew(self, slots: range, now_s: float) -> None:
        """Records that the slots' environments are new."""
        section = slice(slots.start, slots.stop)
        if self._interval_s:
            passed = np.floor((now_s - self._first_s[section]) / self._interval_s) + 1
            due_s = self._first_s[section] + np.maximum(passed, 0) * self._interval_s
            # Rounding may put the next point at this very moment.
            self._due_s[section] = np.where(due_s > now_s, due_s, due_s + self._interval_s)
        else:
            self._due_s[section] = np.inf
