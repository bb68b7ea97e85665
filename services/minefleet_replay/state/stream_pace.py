"""State of the actors' streams: the pace of each, and the chunks that are being made.

How long may a chunk take that is not cut? As long as it fits, whenever it begins, into the window that it would have if
only streams that are clearly faster filled the leases. Streams that are alike need not fit: no lease is filled without
them.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import NamedTuple

from minefleet_replay.state.deduplication import ChunkName
from minefleet_replay.state.lease_forecast import SLACK, WAYS_S, ForecastRow, needed_s
from minefleet_replay.state.limits import Limits

RETRY_STREAM_S = 30.0
"""A stream that is too slow makes a chunk every so often all the same: it may have become faster."""
FASTER_RATIO = 0.8
"""A stream is faster than another whose steps take less than so much of the other's time."""

LATE_RATIO = 4.0
"""From its grant on, a chunk may take so many times as long as it should; then it is late."""


class StreamState(NamedTuple):
    """A stream, as its actor reports it."""

    name: str
    chunk: int
    """That it is making, or is to make next."""
    oldest_version: int | None
    """That has acted in it; None where it has not begun."""
    step_s: float
    """Duration of a step, as far as it is known; 0 where it is not."""
    task: str = ""
    """Task of its environment."""


class LastReport(NamedTuple):
    """The latest report of a stream."""

    step_s: float
    task: str
    received_at: float


class ChunkBegun(NamedTuple):
    """A chunk that is being made, or is on its way."""

    oldest_version: int
    step_s: float
    since: float
    """Time of its first report."""


class Streams:
    """The streams that are played in."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._speeds: tuple[list[float], list[float]] | None = None
        self._known: dict[str, LastReport] = {}
        self._begun: dict[ChunkName, ChunkBegun] = {}
        self._tried: dict[str, float] = {}
        self._slow: dict[str, float] = {}
        """The windows that streams need which are too slow, seconds."""

    def __len__(self) -> int:
        return len(self._known)

    def update(self, state: StreamState, now: float) -> None:
        """Records an actor's report."""
        if self.step_s(state.name) != state.step_s:
            self._speeds = None
        self._known[state.name] = LastReport(state.step_s, state.task, now)
        name = ChunkName(state.name, state.chunk)
        if state.oldest_version is None:
            return
        begun = self._begun.get(name)
        if begun is None or begun.oldest_version != state.oldest_version:  # Begun anew where nothing of it was whole.
            self._begun[name] = ChunkBegun(state.oldest_version, state.step_s, now)

    def wait(self, name: str, now: float) -> None:
        """A stream waits for a grant, or has just been given one."""
        if name in self._known:
            self._known[name] = self._known[name]._replace(received_at=now)

    def whole(self, name: ChunkName) -> None:
        """A chunk is whole, or gone: it is not made any more."""
        self._begun.pop(name, None)

    def expire(self, moment: float) -> None:
        """Forgets the streams that have not reported since."""
        self._known = {name: known for name, known in self._known.items() if known.received_at >= moment}
        self._speeds = None
        self._begun = {name: begun for name, begun in self._begun.items() if name.stream in self._known}
        self._tried, self._slow = (
            {name: value for name, value in known.items() if name in self._known} for known in (self._tried, self._slow)
        )

    def step_s(self, name: str) -> float:
        """The duration of the stream's step, seconds; 0 where it is not known."""
        return self._known[name].step_s if name in self._known else 0.0

    def task(self, name: str) -> str:
        """The task of the stream's environment, as far as it is known."""
        return self._known[name].task if name in self._known else ""

    def playing(self, moment: float) -> Iterator[tuple[str, str]]:
        """The streams that have reported since, and are not too slow; with their tasks."""
        return (
            (name, known.task)
            for name, known in self._known.items()
            if known.received_at >= moment and name not in self._slow
        )

    @property
    def rate(self) -> float:
        """Steps per second that all make together, if none waits."""
        return self._rates[1][-1]

    def longest_chunk_s(self, closing: ForecastRow | None) -> float:
        """The longest duration of a chunk unless it is cut; infinite where it is not known.

        Before anything is forecast, leases are taken to be filled as fast as steps are made.
        """
        steps_s, rates = self._rates
        if not steps_s:
            return math.inf
        chunk_steps = self.limits.chunk_steps
        window_s = closing.window_s if closing else 0.0
        interval_s = closing.interval_s if closing else self.limits.steps_per_iteration / self.rate
        for step_s, slower_s, rate in zip(steps_s, [*steps_s[1:], math.inf], rates[1:], strict=False):
            others_s = min(window_s * self.rate / rate, max(window_s, self.limits.window_steps / rate))
            longest_s = max(chunk_steps * step_s / FASTER_RATIO, (others_s - interval_s - WAYS_S) / SLACK)
            if longest_s <= chunk_steps * slower_s / FASTER_RATIO:
                return longest_s
        return math.inf

    def late_s(self, closing: ForecastRow | None) -> float:
        """Seconds after which others do not wait for a chunk any more; infinite where it is not known."""
        return LATE_RATIO * max(self.longest_chunk_s(closing), closing.longest_s if closing else 0.0)

    def unfit(self, closing: ForecastRow) -> int:
        """The number of streams that hardly have time for their shortest fragment."""
        least_steps, longest_step_s = self.limits.least_steps, self.longest_chunk_s(closing) / self.limits.chunk_steps
        return sum(
            needed_s(least_steps, step_s) > closing.window_s and step_s > longest_step_s
            for step_s, _, _ in self._known.values()
        )

    def may_try(self, name: str, needed_s: float, now: float) -> bool:
        """Whether a stream that is too slow, and needs such a window, may show once more how fast it is."""
        self._slow[name] = needed_s
        is_due = now - self._tried.get(name, -RETRY_STREAM_S) >= RETRY_STREAM_S
        if is_due:
            self._tried[name] = now
        return is_due

    def fast_enough(self, name: str) -> None:
        """A stream is not too slow, or no longer."""
        self._slow.pop(name, None)

    @property
    def too_slow(self) -> Mapping[str, float]:
        """The streams that are, and the windows that they need, seconds."""
        return self._slow

    @property
    def _rates(self) -> tuple[list[float], list[float]]:
        """The durations of steps, [n] rising; and the steps per second of the fastest ones, [n + 1]."""
        if self._speeds is None:
            steps_s = sorted(known.step_s for known in self._known.values() if known.step_s)
            self._speeds = steps_s, list(accumulate((1 / step_s for step_s in steps_s), initial=0.0))
        return self._speeds

    def began_at(self, name: ChunkName, now: float) -> float:
        """Time at which a chunk was begun, as far as was reported."""
        return self._begun[name].since if name in self._begun else now

    def begun_by(self, version: int) -> Iterator[ChunkBegun]:
        """The chunks that this version has begun."""
        return (begun for begun in self._begun.values() if begun.oldest_version == version)
