"""Accounts for the time of an actor's slots.

    turn:  pool.wait ── settle ── absorb, decide, act ── wait_for ── pool.wait

Between two turns no slot changes its phase, so that the time which passes there goes to what each slot waits for at the
end of a turn. The loop's own work is part of it, and the actor's time, not the environment's, for a slot that acted in
that turn, since a pool passes commands on when it is waited for; and for one that is found ready without any wait: it
had been ready, as far as is known, all the time that the loop worked.
"""

import time
from collections.abc import Callable, Sequence

from minefleet.monitoring.bottleneck import SLOTS

ENVIRONMENT, INFERENCE = "environment", "inference"
Waiting = Sequence[tuple[str, int]]
"""Names of `SLOTS`, with the number of slots that wait for it."""
NO_WAIT_S = 1e-4
"""Events found within so long were there before."""


class SlotTimer:
    """Seconds by what slots waited for. Owned by the loop; a reader in another thread misses a turn at most."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = dict.fromkeys(SLOTS, 0.0)
        self._waiting: Waiting = ()
        self._acted = 0
        self._began = self._ended = clock()

    def end_wait(self, answered: int, idle_s: float) -> None:
        """A wait is over: its time, and that of the turn before it, go to what the slots waited for.

        Args:
            answered: Slots whose environment has answered.
            idle_s: How long they had to be waited for.
        """
        now = self._clock()
        elapsed_s, worked_s = now - self._began, self._ended - self._began
        self._began = now
        for kind, slots in self._waiting:
            self._seconds[kind] += slots * elapsed_s
            if kind == ENVIRONMENT:
                moved = min(self._acted + (answered if idle_s < NO_WAIT_S else 0), slots)
                self._seconds[ENVIRONMENT] -= moved * worked_s
                self._seconds[INFERENCE] += moved * worked_s

    def wait_for(self, waiting: Waiting, acted: int) -> None:
        """A turn is over.

        Args:
            waiting: How many slots wait for what from now on.
            acted: Slots whose environments were given something to do in this turn.
        """
        self._waiting, self._acted, self._ended = waiting, acted, self._clock()

    def seconds(self) -> dict[str, float]:
        """Summed over slots, by `SLOTS`."""
        return dict(self._seconds)
