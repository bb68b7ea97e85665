"""Statistics of recent episodes, of one task or of all."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from minefleet.v1 import episode_pb2
from minefleet_learner.metrics.failure_corrected_return import hazard, uncut_mean

MAX_KINDS = 16
"""Kinds of failures that are counted apart."""
OTHER_TASK = "other"
"""Name for what is beyond a bound."""
WINDOWS = ("returns", "discounted_returns", "lengths", "outcomes", "cut_returns", "cut_lengths")


class EpisodeWindow:
    """Counts in total, and windows over the last episodes. Cut episodes are in no return of finished ones.

    An episode that failed before its first good step is a failure, but no cut episode: it had no length yet.
    """

    def __init__(self, window: int, data: Mapping[str, Any] | None = None) -> None:
        """Starts afresh, or goes on from what `to_dict` returned."""
        known = data or {}
        self.finished: int = known.get("finished", 0)
        """Episodes that ended by themselves or by a limit, in total."""
        self.failures: int = known.get("failures", 0)
        """Failures, in total."""
        self.kinds: dict[str, int] = dict(known.get("kinds", {}))
        """The same by kind."""
        returns, discounted, lengths, outcomes, cut_returns, cut_lengths = (
            deque(known.get(name, ()), window) for name in WINDOWS
        )
        self.returns: deque[float] = returns
        self.discounted_returns: deque[float] = discounted
        self.lengths: deque[int] = lengths
        self.outcomes: deque[tuple[int, bool]] = outcomes
        """Of every episode, finished or cut: its good steps, and whether a failure cut it."""
        self.cut_returns: deque[float] = cut_returns
        """Rewards of cut episodes until then."""
        self.cut_lengths: deque[int] = cut_lengths

    def add(self, record: episode_pb2.EpisodeRecord) -> None:
        """Counts an episode."""
        if record.failure:
            self._fail(record)
            return
        self.finished += 1
        self.returns.append(record.episode_return)
        self.discounted_returns.append(record.discounted_return)
        self.lengths.append(record.length)
        self.outcomes.append((record.length, False))

    def _fail(self, record: episode_pb2.EpisodeRecord) -> None:
        self.failures += 1
        kind = bounded(record.failure, self.kinds, MAX_KINDS)
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if record.length:
            self.outcomes.append((record.length, True))
            self.cut_returns.append(record.episode_return)
            self.cut_lengths.append(record.length)

    def summary(self) -> dict[str, Any]:
        """The numbers, by name; None where there was nothing to average."""
        cuts = sum(cut for _, cut in self.outcomes)
        chance = hazard([length for length, _ in self.outcomes], cuts)
        return {
            "episodes": self.finished,
            "return_mean": mean(self.returns),
            "discounted_return_mean": mean(self.discounted_returns),
            "length_mean": mean(self.lengths),
            "failures": self.failures,
            "failures_by_kind": dict(sorted(self.kinds.items())),
            "cut_share": cuts / len(self.outcomes) if self.outcomes else None,
            "cut_return_mean": mean(self.cut_returns),
            "cut_length_mean": mean(self.cut_lengths),
            "return_uncut_mean": uncut_mean(self.returns, self.lengths, chance),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the checkpoint."""
        counts = {"finished": self.finished, "failures": self.failures, "kinds": dict(self.kinds)}
        return counts | {name: list(getattr(self, name)) for name in WINDOWS}


def bounded(name: str, known: Mapping[str, Any], most: int) -> str:
    """The name itself while it is known or there is room for it, else `OTHER_TASK`."""
    return name if name in known or len(known) < most else OTHER_TASK


def mean(values: Iterable[float]) -> float | None:
    """The mean; None of nothing."""
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else None
