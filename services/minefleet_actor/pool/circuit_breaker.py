"""Decides how long a slot pauses after its failures.

    closed ── max_consecutive_failures failures in a row ──▶ open ── cooldown ──▶ half-open ── failure ──▶ open
      ▲                                                                    │
      └────────────────────────── good episode ────────────────────────────┘

Closed, the pause doubles with each failure in a row. Half-open, the slot's environment is tried once.
"""

import logging
from collections.abc import Sequence

import numpy as np

from minefleet_actor.pool.pool_results import EnvGaveUpError, Slots

logger = logging.getLogger(__name__)

BACKOFF_S = 0.1
"""Pause after a first failure, seconds; doubled with each failure in a row."""
MAX_BACKOFF_S = 30.0


class Breaker:
    """Counts every slot's failures in a row, and stops slots for a while that fail too often."""

    def __init__(self, num_slots: int, *, max_consecutive_failures: int, circuit_breaker_cooldown_s: float) -> None:
        self.until_s = np.full(num_slots, -np.inf)
        """[N] float64, when each slot's pause is over, on the monotonic clock."""
        self._max_consecutive_failures = max_consecutive_failures
        self._cooldown_s = circuit_breaker_cooldown_s
        self._in_row = np.zeros(num_slots, np.int64)

    def fail(self, slots: Sequence[int], text: str, now_s: float) -> float:
        """Counts a failure of each slot, and returns when the first of their pauses is over.

        Raises:
            EnvGaveUpError: If no slot is left that is not cooling down.
        """
        for slot in slots:
            self._in_row[slot] += 1
            self.until_s[slot] = now_s + self._pause_s(int(self._in_row[slot]))
            if self._in_row[slot] >= self._max_consecutive_failures:
                rest = f"slot {slot} failed {self._in_row[slot]} times without finishing an episode"
                logger.warning("%s; it cools down for %g s", rest, self._cooldown_s)
                self._check_all(f"{rest}; the last time: {text}", now_s)
        return float(self.until_s[list(slots)].min())

    def succeed(self, slots: Slots) -> None:
        """Resets the counts of slots that have finished an episode."""
        for slot in slots[self._in_row[slots] >= self._max_consecutive_failures]:
            logger.info("slot %s works again", slot)
        self._in_row[slots] = 0

    def cooling_down(self, now_s: float) -> int:
        """Number of slots that cool down."""
        return int(np.count_nonzero((self._in_row >= self._max_consecutive_failures) & (self.until_s > now_s)))

    def _pause_s(self, in_row: int) -> float:
        if in_row >= self._max_consecutive_failures:
            return self._cooldown_s
        return float(min(BACKOFF_S * 2.0 ** min(in_row - 1, 20), MAX_BACKOFF_S))

    def _check_all(self, text: str, now_s: float) -> None:
        count = len(self.until_s)
        if self.cooling_down(now_s) == count:
            raise EnvGaveUpError(text if count == 1 else f"all {count} slots fail; {text}")
