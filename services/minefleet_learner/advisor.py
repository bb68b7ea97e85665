"""Says which stage limits the run, at any moment and for every iteration.

    loop time (here) ───────────────┐
    slot seconds (actors, by replay)├─▶ marks, one per iteration ─▶ shares since an earlier mark ─▶ judge
    busy cores (this machine) ──────┘

Shares are taken over the last `WINDOW_S`, or over the last `LEAST` iterations where these take longer: within one the
two loops may well take turns.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from minefleet.limit import STAGES, LoopShares, SlotShares, Verdict, names, shares
from minefleet.v1 import replay_service_pb2
from minefleet_learner.loop_time import LoopTime
from minefleet_runtime.processor import CoreTime, own_cores

SlotSeconds = replay_service_pb2.SlotSeconds

WINDOW_S = 30.0
LEAST = 2
BETWEEN_S = 1.0
"""Least time between two marks."""
MOST = 100
"""Marks that are kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """Where everything stood at one moment, in seconds."""

    at_s: float
    loop: Mapping[str, float]
    slots: Mapping[str, float]
    slots_busy_s: float
    cores: CoreTime


class Advisor(Collector):
    """The learner's view of the whole ring. Thread-safe."""

    def __init__(
        self,
        slot_seconds: Callable[[], SlotSeconds],
        max_staleness: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        cores: Callable[[], CoreTime] = own_cores,
    ) -> None:
        self.loop_time = LoopTime(max_staleness, clock)
        self._slot_seconds = slot_seconds
        self._clock = clock
        self._cores = cores
        self._lock = threading.Lock()
        self._marks: deque[Mark] = deque([self._now()], MOST)

    def lap(self) -> Verdict:
        """An iteration is over; what limits as far as is known."""
        now = self._now()
        with self._lock:
            if any(now.slots[name] < seconds for name, seconds in self._marks[-1].slots.items()):
                self._marks = deque([now], MOST)  # Replay has started anew, and its sums with it.
            verdict = self._judge(now)
            if now.at_s - self._marks[-1].at_s >= BETWEEN_S:
                self._marks.append(now)
            return verdict

    def verdict(self) -> Verdict:
        """What limits at this moment."""
        now = self._now()
        with self._lock:
            return self._judge(now)

    def figures(self) -> dict[str, float]:
        """The verdict as a role's figures."""
        return self.verdict().figures()

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """The loop's time and the gains, at the moment of the scrape."""
        time_family = CounterMetricFamily(
            "minefleet_learner_loop_seconds", "Time of the learner's loop, by what it went to.", labels=["spent_on"]
        )
        for name, seconds in self.loop_time.seconds().items():
            time_family.add_metric([name], seconds)
        yield time_family
        gains = GaugeMetricFamily(
            "minefleet_learner_limit_gain",
            "At most how many times as fast the run would be if this stage took no time.",
            labels=["stage"],
        )
        limit = self.verdict().limit
        for stage in STAGES:
            gains.add_metric([stage], limit.gains[stage] if limit is not None else float("nan"))
        yield gains

    def _now(self) -> Mark:
        slots = self._slot_seconds()
        return Mark(
            at_s=self._clock(),
            loop=self.loop_time.seconds(),
            slots={name: getattr(slots, name) for name in names(SlotShares)},
            slots_busy_s=slots.busy,
            cores=self._cores(),
        )

    def _judge(self, now: Mark) -> Verdict:
        then = self._earlier(now)
        slots_s, busy_s = _passed(then.slots, now.slots), max(0.0, now.slots_busy_s - then.slots_busy_s)
        cores_s = now.cores.total_s - then.cores.total_s
        return Verdict(
            slots=SlotShares(**shares(slots_s)),
            loop=LoopShares(**shares(_passed(then.loop, now.loop))),
            actors_busy=busy_s / (sum(slots_s.values()) or 1.0),
            learner_busy=(now.cores.busy_s - then.cores.busy_s) / cores_s if cores_s > 0 else 0.0,
        )

    def _earlier(self, now: Mark) -> Mark:
        """The mark from which on shares are taken."""
        long_ago = (mark for mark in list(self._marks)[-LEAST::-1] if now.at_s - mark.at_s >= WINDOW_S)
        return next(long_ago, self._marks[0])


def _passed(then: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    return {name: max(0.0, seconds - then[name]) for name, seconds in now.items()}
