"""Accounts for the time of the learner's loop.

    loop         waits ─▶ trains ─▶ (waits for publish) ─▶ trains ─▶ waits
    prefetcher   reading ──▶ not                                       explain what a wait is for
    backlog      unpublished ──▶ published

Three threads report their activity; at each report, the time since the last one goes to what the loop was doing. So the
seconds are right at every moment, also within a wait that does not end.

No fragment may be used at a version more than `max_staleness` above the one that acted it. Once the loop is more
unpublished versions ahead than that, it waits for its own publishes.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from minefleet.monitoring.bottleneck import LOOP_PREFIX, LOOP_STAGES, shares
from minefleet_runtime.counter_window import Recent

Doing = Literal["nothing", "waits", "trains", "stands still"]


class LoopTimer(Collector):
    """Seconds by what they went to, from the end of the first wait on, which is for roles to start. Thread-safe."""

    def __init__(self, max_staleness: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_staleness = max_staleness
        self._clock = clock
        self._lock = threading.Lock()
        self._seconds = dict.fromkeys(LOOP_STAGES, 0.0)
        self._since = clock()
        self._doing: Doing = "nothing"
        self._is_reading = False
        self._unpublished = 0
        self._recent = Recent(self.seconds, clock)

    def waits(self) -> None:
        """The loop waits for fragments from now on."""
        if self._doing != "nothing":
            self._do("waits")

    def trains(self) -> None:
        """The loop is at work."""
        self._do("trains")

    @contextmanager
    def waiting_for_publish(self) -> Iterator[None]:
        """The loop stands still for weights that are copied or published; then it is at work again."""
        self._do("stands still")
        try:
            yield
        finally:
            self._do("trains")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """The prefetcher reads fragments that it has leased."""
        self._read(True)
        try:
            yield
        finally:
            self._read(False)

    def trained(self) -> None:
        """There is one more version that is not out."""
        with self._lock:
            self._end_interval()
            self._unpublished += 1

    def published(self) -> None:
        """One of them is out."""
        with self._lock:
            self._end_interval()
            self._unpublished -= 1

    def seconds(self) -> dict[str, float]:
        """Up to now, by `LOOP_STAGES`."""
        with self._lock:
            self._end_interval()
            return dict(self._seconds)

    def shares(self) -> dict[str, float]:
        """Of the time of late, by `LOOP_STAGES`; all 0 before the first wait is over."""
        return shares(self._recent.grown(), LOOP_STAGES)

    def stats(self) -> dict[str, float]:
        """Seconds of the last while, for the learner's status."""
        return {f"{LOOP_PREFIX}{name}": seconds for name, seconds in self._recent.grown().items()}

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Up to the moment of the scrape."""
        family = CounterMetricFamily(
            "minefleet_learner_loop_seconds", "Time of the learner's loop, by what it went to.", labels=["spent_on"]
        )
        for name, seconds in self.seconds().items():
            family.add_metric([name], seconds)
        yield family

    def _do(self, doing: Doing) -> None:
        with self._lock:
            self._end_interval()
            self._doing = doing

    def _read(self, is_reading: bool) -> None:
        with self._lock:
            self._end_interval()
            self._is_reading = is_reading

    def _end_interval(self) -> None:
        now = self._clock()
        elapsed_s, self._since = now - self._since, now
        if self._doing != "nothing":
            self._seconds[self._spent_on()] += elapsed_s

    def _spent_on(self) -> str:
        if self._doing == "trains":
            return "training"
        if self._doing == "stands still":
            return "blocked"
        if self._is_reading:
            return "replay"
        return "weights" if self._unpublished > self.max_staleness else "fragments"
