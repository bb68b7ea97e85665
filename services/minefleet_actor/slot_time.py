"""What an actor's slots spend their time on.

    turn:  pool.wait ── settle ── absorb, decide, act ── wait_for ── pool.wait

Between two turns no slot changes its phase, so that the time which passes there goes to what each slot waits for at the
end of a turn. The loop's own work is part of it, and the actor's time, not the environment's, for a slot that acted in
that turn, since a pool passes commands on when it is waited for; and for one that is found ready without any wait: it
had been ready, as far as is known, all the time that the loop worked.
"""

import time
from collections.abc import Callable, Sequence

from minefleet.v1 import replay_service_pb2
from minefleet_runtime.processor import BusyShare

SlotSeconds = replay_service_pb2.SlotSeconds

ENVIRONMENT, INFERENCE, GRANT, ROOM, WEIGHTS = range(5)
KINDS = ("environment", "inference", "grant", "room", "weights")
"""What a slot may wait for, in this order; the names are those of `minefleet.limit.SlotShares`."""
KIND_OF = {kind: number for number, kind in enumerate(KINDS)}
Waiting = Sequence[tuple[int, int]]
"""Kinds, each once, with the number of slots that wait for it."""
AT_ONCE_S = 1e-4
"""What is found within so long was there before."""
LOOK_S = 1.0
"""Time between two looks at how busy the machine is, seconds."""


class SlotTime:
    """Seconds by lane and kind. The loop's; whoever reads it meanwhile misses a turn at most."""

    def __init__(
        self,
        lanes: int,
        clock: Callable[[], float] = time.monotonic,
        busy: Callable[[], float] | None = None,
    ) -> None:
        self._clock = clock
        self._look = busy or BusyShare().look
        self._seconds = [[0.0] * len(KINDS) for _ in range(lanes)]
        self._busy_s = [0.0] * lanes
        self._busy, self._looked_at = 0.0, -LOOK_S
        self._waiting: Sequence[Waiting] = [()] * lanes
        self._acted = 0
        self._began = self._ended = clock()

    def settle(self, answered: int, idle_s: float) -> None:
        """A wait is over: its time, and that of the turn before it, go to what the slots waited for.

        Args:
            answered: Slots whose environment has answered.
            idle_s: How long they had to be waited for.
        """
        now = self._clock()
        elapsed_s, worked_s = now - self._began, self._ended - self._began
        self._began = now
        busy_s, waited = self._busy * elapsed_s, self._acted + (answered if idle_s < AT_ONCE_S else 0)
        for lane, counts in enumerate(self._waiting):
            seconds = self._seconds[lane]
            for kind, slots in counts:
                seconds[kind] += slots * elapsed_s
                self._busy_s[lane] += slots * busy_s
                if kind == ENVIRONMENT:
                    moved = min(waited, slots)
                    waited -= moved
                    seconds[ENVIRONMENT] -= moved * worked_s
                    seconds[INFERENCE] += moved * worked_s

    def wait_for(self, waiting: Sequence[Waiting], acted: int) -> None:
        """A turn is over.

        Args:
            waiting: By lane, how many slots wait for what from now on.
            acted: Slots whose environments were given something to do in this turn.
        """
        self._waiting, self._acted, self._ended = waiting, acted, self._clock()
        if self._ended - self._looked_at >= LOOK_S:
            self._busy, self._looked_at = self._look(), self._ended

    def of(self, lane: int) -> SlotSeconds:
        """What the slots of one lane have come to."""
        return SlotSeconds(**dict(zip(KINDS, self._seconds[lane], strict=True)), busy=self._busy_s[lane])

    def totals(self) -> dict[str, float]:
        """Over all lanes."""
        return {kind: sum(seconds[index] for seconds in self._seconds) for index, kind in enumerate(KINDS)}
