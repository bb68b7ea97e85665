"""One line of `metrics.jsonl` and of `episodes.csv`."""

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from minefleet.runs.checkpoint_files import CheckpointState
from minefleet.v1 import episode_pb2
from minefleet_learner.data.prefetcher import LeaseInfo
from minefleet_learner.diagnostics.parity import Parity
from minefleet_learner.metrics.episode_statistics import EpisodeStatistics
from minefleet_learner.metrics.episode_window import mean
from minefleet_learner.training.schedules import Rates
from minefleet_learner.training.update_report import UpdateReport

WINDOW = 20
"""Iterations over which `sps` is taken."""
GROUPS = {
    **dict.fromkeys((field.name for field in fields(UpdateReport)), "loss"),
    **dict.fromkeys(("episodes", "crafter_score"), "episode"),
    **dict.fromkeys("wall_s sps learner_wait_ratio publish_blocked_s loop_share".split(), "time"),
    **dict.fromkeys("staleness_mean staleness_max reuse_mean step_shares".split(), "data"),
    **dict.fromkeys("skipped_steps optimizer_steps burn_in_steps".split(), "data"),
    **dict.fromkeys("learning_rate clip rho entropy_coef".split(), "rate"),
}
"""Groups of what trackers show, by the name in a row. The other names have their group in front, or none."""
PREFIXES = ("episode", "eval", "parity")


class Stopwatch:
    """Times the loop: how much of an iteration it waits for fragments."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ended = clock()
        self._waited_s = 0.0

    def waited(self) -> None:
        """Ends the wait for fragments."""
        self._waited_s = self._clock() - self._ended

    def lap(self) -> float:
        """Ends an iteration; returns the share of it that was waited."""
        now = self._clock()
        duration_s, self._ended = now - self._ended, now
        return self._waited_s / duration_s if duration_s > 0 else 0.0


class Speedometer:
    """Measures environment steps per second over the last iterations, and the time since this launch."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._launched = clock()
        self._marks: deque[tuple[float, int]] = deque(maxlen=WINDOW + 1)

    @property
    def launch_s(self) -> float:
        """Seconds since this launch."""
        return self._clock() - self._launched

    def pass_by(self, env_steps: int) -> float | None:
        """Records that an iteration ends with so many steps; returns the steps per second, None after the first one."""
        now = self._clock()
        self._marks.append((now, env_steps))
        (then, steps_then) = self._marks[0]
        return (env_steps - steps_then) / (now - then) if now > then else None


@dataclass(frozen=True, kw_only=True, slots=True)
class IterationStats:
    """The loop's account of a trained iteration."""

    lease: LeaseInfo
    report: UpdateReport
    parity: Parity
    rates: Rates
    learner_wait_ratio: float
    """Share of the iteration that the loop waited for fragments."""
    publish_blocked_s: float
    """Seconds that the loop stood still so that weights could be published."""
    changed_keys: Mapping[str, Any] = field(default_factory=dict)
    """The live keys that it is the first to have other values of, with these."""


def make_row(
    *,
    state: CheckpointState,
    episodes: EpisodeStatistics,
    stats: IterationStats,
    sps: float | None,
    loop_share: Mapping[str, float],
    shares: Mapping[str, Any],
) -> dict[str, Any]:
    """The numbers of an iteration that has just been acked."""
    staleness, uses = stats.lease.staleness, stats.lease.uses
    return {
        "iteration": state.iteration,
        "env_steps": state.env_steps,
        "trained_steps": state.trained_steps,
        "policy_version": state.version,
        "wall_s": state.wall_s,
        **episodes.summary(),
        "sps": sps,
        "learner_wait_ratio": stats.learner_wait_ratio,
        "publish_blocked_s": stats.publish_blocked_s,
        "loop_share": loop_share,
        **shares,
        "staleness_mean": mean(staleness),
        "staleness_max": max(staleness, default=None),
        "reuse_mean": mean(uses),
        **asdict(stats.report),
        "skipped_steps": state.skipped_steps,
        "learning_rate": stats.rates.learning_rate,
        "clip": stats.rates.clip,
        "rho": stats.rates.rho,
        "entropy_coef": stats.rates.entropy,
        "parity_steps": stats.parity.steps,
        "parity_logp": stats.parity.logp,
        "parity_value": stats.parity.value,
        "parity_unprobed": stats.parity.unprobed,
        **({"changed_keys": stats.changed_keys} if stats.changed_keys else {}),
    }


def tag(name: str) -> str:
    """The name by which trackers show a number of a row: `episode/return_mean` for `episode_return_mean`."""
    first = name.split("/", maxsplit=1)[0]
    group = GROUPS.get(first) or next((one for one in PREFIXES if first.startswith(f"{one}_")), "")
    return f"{group}/{name.removeprefix(f'{group}_')}" if group else name


def episode_row(record: episode_pb2.EpisodeRecord, state: CheckpointState) -> dict[str, Any]:
    """One line of `episodes.csv`, by column: an episode that the learner has read at that position of training."""
    return {
        "iteration": state.iteration,
        "env_steps": state.env_steps,
        "wall_s": round(state.wall_s, 3),
        "policy_version": record.policy_version,
        "evaluation": record.evaluation,
        "task": " ".join(record.task.split()),  # A line of the table is one line of the file.
        "episode_return": record.episode_return,
        "discounted_return": record.discounted_return,
        "length": record.length,
        "terminated": record.terminated,
        "truncated": record.truncated,
        "failure": record.failure,
        "stream": record.stream,
        "episode": record.episode,
        "video": record.video.path,
        "metrics": json.dumps(dict(record.metrics)),
    }
