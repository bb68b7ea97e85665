"""Statistics of finished episodes, from replay's episode log: of all, and of each task."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from minefleet.config import EpisodeStatisticsConfig
from minefleet.core import crafter_score
from minefleet.v1 import episode_pb2
from minefleet_learner.metrics.collapse import CollapseDetector
from minefleet_learner.metrics.episode_window import OTHER_TASK, EpisodeWindow, bounded, mean

DEFAULT = EpisodeStatisticsConfig()


class EpisodeStatistics:
    """The last episodes of the training, and of the evaluations of the newest version that was evaluated."""

    def __init__(self, config: EpisodeStatisticsConfig = DEFAULT, data: Mapping[str, Any] | None = None) -> None:
        """Starts afresh, or goes on from what `to_dict` returned."""
        known = data or {}
        self._config = config
        self.total = EpisodeWindow(config.window, known)
        self.tasks = {name: EpisodeWindow(config.window, of_one) for name, of_one in known.get("tasks", {}).items()}
        """By name; of episodes whose task has one."""
        self.collapse = CollapseDetector(known.get("collapse", {}))
        """Of the same episodes."""
        self._metrics: deque[dict[str, float]] = deque(known.get("metrics", ()), config.window)
        """The environment's report at the end of each."""
        self._evaluated_version: int = known.get("evaluated_version", 0)
        self._evaluation_returns: list[float] = list(known.get("evaluation_returns", ()))
        """Of that version."""

    def add(self, record: episode_pb2.EpisodeRecord) -> None:
        """Counts an episode."""
        if record.evaluation:
            self._add_evaluation(record)
            return
        self.total.add(record)
        if record.task:
            self._task(record.task).add(record)
        if not record.failure:
            self.collapse.add(record)
            self._metrics.append(dict(record.metrics))

    def _task(self, task: str) -> EpisodeWindow:
        named = {name: tally for name, tally in self.tasks.items() if name != OTHER_TASK}
        name = bounded(task, named, self._config.max_tasks)
        if name not in self.tasks:
            self.tasks[name] = EpisodeWindow(self._config.window)
        return self.tasks[name]

    def _add_evaluation(self, record: episode_pb2.EpisodeRecord) -> None:
        if record.policy_version > self._evaluated_version:
            self._evaluated_version, self._evaluation_returns = record.policy_version, []
        if record.policy_version == self._evaluated_version and not record.failure:
            self._evaluation_returns.append(record.episode_return)

    @property
    def return_mean(self) -> float | None:
        """Mean return of the last episodes; None before the first."""
        return mean(self.total.returns)

    def summary(self) -> dict[str, Any]:
        """The numbers for a line of metrics."""
        means = _means(self._metrics)
        summary = {_in_total(name): value for name, value in self.total.summary().items()}
        summary["episode_metrics"] = means
        if self.tasks:
            summary["tasks"] = {name: tally.summary() for name, tally in sorted(self.tasks.items())}
        if set(crafter_score.METRICS) <= set(means):
            summary["crafter_score"] = crafter_score.score({name: means[name] for name in crafter_score.METRICS})
        if self._evaluation_returns:
            summary["eval_return_mean"] = mean(self._evaluation_returns)
            summary["eval_policy_version"] = self._evaluated_version
        return summary

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the checkpoint."""
        return {
            **self.total.to_dict(),
            "tasks": {name: tally.to_dict() for name, tally in self.tasks.items()},
            "collapse": self.collapse.to_dict(),
            "metrics": list(self._metrics),
            "evaluated_version": self._evaluated_version,
            "evaluation_returns": self._evaluation_returns,
        }


def _in_total(name: str) -> str:
    return name if name == "episodes" else f"episode_{name}"


def _means(reports: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Means by name, over the reports that have the name."""
    columns: dict[str, list[float]] = {}
    for report in reports:
        for name, value in report.items():
            columns.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in sorted(columns.items())}
