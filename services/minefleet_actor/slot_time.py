"""What an actor's slots spend their time on.

    turn:  pool.wait ── settle ── absorb, decide, act ── wait_for ── pool.wait

Between two turns no slot changes its phase, so that the time which passes there goes to what each slot waits for at the
end of a turn. The loop's own work is part of it. Where the loop decides by itself, no environment steps while it works:
that is the actor's time. Else a slot that was found ready without any wait had been ready, as far as is known, all the
time that the loop worked; that is the actor's time, too, and not the environment's.
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
        self._began = self._ended = clock()

    def settle(self, answered: int, *, in_turn: bool = False) -> None:
        """A wait is over: its time, and that of the turn before it, go to what the slots waited for.

        Args:
            answered: Slots whose environment has answered.
            in_turn: Whether the loop decides by itself.
        """
        now = self._clock()
        elapsed_s, worked_s, waited_s = now - self._began, self._ended - self._began, now - self._ended
        self._began = now
        busy_s, late = self._busy * elapsed_s, answered if waited_s < AT_ONCE_S else 0
        for lane, counts in enumerate(self._waiting):
            seconds = self._seconds[lane]
            for kind, slots in counts:
                seconds[kind] += slots * elapsed_s
                self._busy_s[lane] += slots * busy_s
                if kind == ENVIRONMENT:
                    moved = slots if in_turn else min(late, slots)
                    late -= moved
                    seconds[ENVIRONMENT] -= moved * worked_s
                    seconds[INFERENCE] += moved * worked_s

    def wait_for(self, waiting: Sequence[Waiting]) -> None:
        """A turn is over.

        Args:
            waiting: By lane, how many slots wait for what from now on.
        """
        self._waiting, self._ended = waiting, self._clock()
        if self._ended - self._looked_at >= LOOK_S:
            self._busy, self._looked_at = self._look(), self._ended

    def of(self, lane: int) -> SlotSeconds:
        """What the slots of one lane have come to."""
        return SlotSeconds(**dict(zip(KINDS, self._seconds[lane], strict=True)), busy=self._busy_s[lane])

    def totals(self) -> dict[str, float]:
        """Over all lanes."""
        return {kind: sum(seconds[index] for seconds in self._seconds) for index, kind in enumerate(KINDS)}
