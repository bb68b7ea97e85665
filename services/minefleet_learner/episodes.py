"""Statistics of finished episodes, from replay's episode log."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from minefleet import crafter_score
from minefleet.v1 import episode_pb2

WINDOW = 100
"""Episodes that the means are taken over."""


@dataclass(slots=True)
class EpisodeStatistics:
    """The last episodes of the training, and of the evaluations of the newest version that was evaluated."""

    finished: int = 0
    """Training episodes that ended by themselves or by a limit, in total."""
    failures: int = 0
    """Episodes cut by a failure, in total; in no other number."""
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOW))
    metrics: deque[dict[str, float]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """What the environment reported at the end of each."""
    evaluated_version: int = 0
    evaluation_returns: list[float] = field(default_factory=list)
    """Of `evaluated_version`."""

    def add(self, record: episode_pb2.EpisodeRecord) -> None:
        """Counts an episode."""
        if record.failure:
            self.failures += 1
        elif record.evaluation:
            self._add_evaluation(record)
        else:
            self.finished += 1
            self.returns.append(record.episode_return)
            self.lengths.append(record.length)
            self.metrics.append(dict(record.metrics))

    def _add_evaluation(self, record: episode_pb2.EpisodeRecord) -> None:
        if record.policy_version > self.evaluated_version:
            self.evaluated_version, self.evaluation_returns = record.policy_version, []
        if record.policy_version == self.evaluated_version:
            self.evaluation_returns.append(record.episode_return)

    @property
    def return_mean(self) -> float | None:
        """Mean return of the last episodes; None before the first."""
        return _mean(self.returns)

    def summary(self) -> dict[str, Any]:
        """The numbers for a line of metrics."""
        means = _means(self.metrics)
        summary: dict[str, Any] = {
            "episodes": self.finished,
            "episode_return_mean": self.return_mean,
            "episode_length_mean": _mean(self.lengths),
            "episode_failures": self.failures,
            "episode_metrics": means,
        }
        if set(crafter_score.METRICS) <= set(means):
            summary["crafter_score"] = crafter_score.score({name: means[name] for name in crafter_score.METRICS})
        if self.evaluation_returns:
            summary["eval_return_mean"] = _mean(self.evaluation_returns)
            summary["eval_policy_version"] = self.evaluated_version
        return summary

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the checkpoint."""
        return {
            "finished": self.finished,
            "failures": self.failures,
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "metrics": list(self.metrics),
            "evaluated_version": self.evaluated_version,
            "evaluation_returns": list(self.evaluation_returns),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "EpisodeStatistics":
        """Inverts `to_dict`; an empty mapping is a fresh start."""
        windows = {key: deque(data.get(key, ()), WINDOW) for key in ("returns", "lengths", "metrics")}
        return cls(**{**data, **windows})


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else None


def _means(reports: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Means by name, over the reports that have the name."""
    columns: dict[str, list[float]] = {}
    for report in reports:
        for name, value in report.items():
            columns.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in sorted(columns.items())}
