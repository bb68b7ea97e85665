"""The rate at which a count grows, as an actor exports it."""

import time
from collections import deque
from collections.abc import Callable

WINDOW_S = 10
"""Seconds over which a rate is taken."""


class RateMeter:
    """The rate at which a count grows, over the last seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marks: deque[tuple[float, int]] = deque([(clock(), 0)], maxlen=WINDOW_S + 1)

    def of(self, count: int) -> float:
        """The rate, per second, now that the count is this."""
        now = self._clock()
        then, before = self._marks[0]
        if now - self._marks[-1][0] >= 1:
            self._marks.append((now, count))
        return (count - before) / (now - then) if now > then else 0.0
