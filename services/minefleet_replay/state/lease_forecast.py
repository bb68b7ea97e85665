"""Forecasts until when a lease takes what is made for it, from how long the last ones took. Pure: time is passed in.

A lease for use at version u can be filled from the moment at which that for u - 1 was answered. Once there are enough
steps it is answered; only for chunks that would be too stale for the next one it waits, while they may still come:

    answer(u - 1) ──────────── enough steps ─── answer(u)
                  ◀── fill ──▶
                  ◀─ EARLY · fill ─▶            closes: what is long enough is cut and sent by then
                  ◀─── (1 + patience) · fill ───▶ at the latest, for what is not

Steps of version v may be used for version v + max_staleness at the latest. So their window is the time from the report
of v until there are enough steps for that lease: a fragment that takes longer can never be used.
"""

from collections import deque
from itertools import accumulate
from statistics import median
from typing import NamedTuple

MIN_PATIENCE, MAX_PATIENCE, PATIENCE_PER_SHARE = 0.1, 1.0, 2.0
"""A lease waits longer than it takes to fill it, by such a share of that: the more, the larger the share of the streams
that would not fit into their window otherwise, so that few slow ones do not slow many others down."""
SLACK, WAYS_S = 1.2, 0.06
"""Steps may take so much longer than they did; and so long takes the way of weights and of fragments."""
EARLY = 0.9
"""A forecast names so much of the expected time, since what comes late is lost."""
SAMPLES = 8
"""Of how long leases take."""
EARLY_RANK = 4
"""Of how long several leases take together, one in so many is shorter than what is forecast: they are irregular."""
FEW_SAMPLES = 4
"""Of windows, of which the shortest counts."""
MIN_SAMPLES = 1


class LeaseTimes(NamedTuple):
    """Of a lease."""

    enough_at: float
    answered_at: float


class ForecastRow(NamedTuple):
    """When the lease that is being filled closes, and how long those after it take."""

    use_version: int
    """That the lease is for."""
    closes_in_s: tuple[float, ...]
    """Until what is long enough shall be sent for that lease, and for each after it that may hold what acts now."""
    at_most_in_s: float
    """Until that lease waits at most."""
    waits_s: float
    """Longest additional wait of a lease for streams that take too long."""
    interval_s: float
    """Between the ends of two leases that wait for nothing."""
    window_s: float
    """From a version until there is enough for the last lease that may hold what it has acted."""
    longest_s: float
    """The same, with what that lease waits at most."""


def needed_s(steps: int, step_s: float) -> float:
    """The window that a fragment needs whose steps take so long."""
    return SLACK * steps * step_s + WAYS_S


class LeaseClock:
    """The forecast."""

    def __init__(self, max_staleness: int) -> None:
        self._max_staleness = max_staleness
        self._windows = deque[float](maxlen=FEW_SAMPLES)
        self._use_version = 0
        """That the last lease was for."""
        self._answers = deque[LeaseTimes](maxlen=max_staleness + 1 + SAMPLES)
        """Of leases that followed each other."""
        self._enough_at: float | None = None
        self._published: dict[int, float] = {}
        self._patience = MIN_PATIENCE

    def be_patient(self, slow: int, streams: int) -> None:
        """Sets how many streams of all would not fit into their window."""
        share = slow / streams if streams else 0.0
        self._patience = min(MIN_PATIENCE + PATIENCE_PER_SHARE * share, MAX_PATIENCE)

    def published(self, version: int, now: float) -> None:
        """A version was reported."""
        self._published[version] = now
        for old in [one for one in self._published if one < version - self._max_staleness - SAMPLES]:
            del self._published[old]

    def enough(self, now: float) -> None:
        """The lease that is asked for could be answered."""
        self._enough_at = now if self._enough_at is None else self._enough_at

    def taken_over(self) -> None:
        """A newer epoch asks from now on: the lease that an older one waited for is never answered."""
        self._enough_at = None

    def answered(self, use_version: int, now: float) -> None:
        """A lease was answered."""
        enough_at = now if self._enough_at is None else self._enough_at
        if use_version != self._use_version + 1:
            self._answers.clear()
        self._use_version = use_version
        self._answers.append(LeaseTimes(enough_at, now))
        published = self._published.get(use_version - self._max_staleness)
        if published is not None:
            self._windows.append(enough_at - published)
        self._enough_at = None

    def forecast(self, now: float) -> ForecastRow | None:
        """When the next lease closes; None while too little is known."""
        if len(self._answers) <= MIN_SAMPLES or len(self._windows) < MIN_SAMPLES:
            return None
        since, fill_s = self._answers[-1].answered_at, median(self._took_s(1))
        closes_s = accumulate((self._soon_s(leases, fill_s) for leases in range(1, self._max_staleness + 2)), max)
        return ForecastRow(
            use_version=self._use_version + 1,
            closes_in_s=tuple(max(0.0, since + close_s - now) for close_s in closes_s),
            at_most_in_s=max(0.0, since + (1 + self._patience) * fill_s - now),
            waits_s=(1 - EARLY + self._patience) * fill_s,
            interval_s=fill_s,
            window_s=(window_s := min(self._windows)),
            longest_s=window_s + self._patience * fill_s,
        )

    def _took_s(self, leases: int) -> list[float]:
        """Seconds that so many leases have taken together lately, from an answer to enough steps for the last."""
        answers = list(self._answers)
        spans = zip(answers, answers[leases:], strict=False)
        return [last.enough_at - before.answered_at for before, last in spans][-SAMPLES:]

    def _soon_s(self, leases: int, fill_s: float) -> float:
        """The earliest time at which so many leases may be over, from the last answer on."""
        took_s = sorted(self._took_s(leases))
        soon_s = took_s[len(took_s) // EARLY_RANK] if took_s else leases * fill_s
        return soon_s - (1 - EARLY) * fill_s
