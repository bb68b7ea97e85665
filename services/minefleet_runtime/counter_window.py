"""Growth of counters over the last seconds."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

WINDOW_S = 30.0
MARK_S = 1.0
"""Least time between two marks."""


class Recent:
    """Looks back by `window_s`, or to the beginning; asked seldom, to when it was asked before that. Thread-safe."""

    def __init__(
        self,
        read: Callable[[], Mapping[str, float]],
        clock: Callable[[], float] = time.monotonic,
        window_s: float = WINDOW_S,
    ) -> None:
        self._window_s = window_s
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._marks = deque([(clock(), dict(read()))])

    def grown(self) -> dict[str, float]:
        """By name, what has been added since then."""
        with self._lock:
            now_s, now = self._clock(), dict(self._read())
            while len(self._marks) > 1 and now_s - self._marks[1][0] >= self._window_s:
                self._marks.popleft()
            then = self._marks[0][1]
            if now_s - self._marks[-1][0] >= MARK_S:
                self._marks.append((now_s, now))
            return {name: count - then.get(name, 0.0) for name, count in now.items()}
