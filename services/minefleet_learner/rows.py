"""One line of `metrics.jsonl`."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from minefleet.checkpoint import CheckpointState
from minefleet_learner.episodes import EpisodeStatistics
from minefleet_learner.feed import Leased
from minefleet_learner.parity import Parity
from minefleet_learner.report import UpdateReport
from minefleet_learner.schedule import Rates

WINDOW = 20
"""Iterations over which `sps` is taken."""


class Stopwatch:
    """Times the iterations."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._launched = self._ended = clock()
        self._taken = 0.0
        self._marks: deque[tuple[float, int]] = deque(maxlen=WINDOW + 1)

    @property
    def launch_s(self) -> float:
        """Seconds since this launch."""
        return self._clock() - self._launched

    def waited(self) -> None:
        """Ends the wait for fragments."""
        self._taken = self._clock()

    def lap(self, env_steps: int) -> dict[str, float]:
        """Ends an iteration; returns `sps` and `learner_wait_ratio`."""
        now = self._clock()
        duration_s, waited_s = now - self._ended, self._taken - self._ended
        self._ended = now
        self._marks.append((now, env_steps))
        (then, steps_then) = self._marks[0]
        sps = (env_steps - steps_then) / (now - then) if now > then else 0.0
        return {"sps": sps, "learner_wait_ratio": waited_s / duration_s if duration_s > 0 else 0.0}


def make_row(
    *,
    state: CheckpointState,
    episodes: EpisodeStatistics,
    leased: Leased,
    report: UpdateReport,
    parity: Parity,
    rates: Rates,
    times: dict[str, float],
) -> dict[str, Any]:
    """The numbers of an iteration that has just ended."""
    return {
        "iteration": state.iteration,
        "env_steps": state.env_steps,
        "trained_steps": state.trained_steps,
        "policy_version": state.version,
        "wall_s": state.wall_s,
        **episodes.summary(),
        **times,
        "staleness_mean": sum(leased.staleness) / len(leased.staleness),
        "staleness_max": max(leased.staleness),
        "reuse_mean": sum(leased.uses) / len(leased.uses),
        **asdict(report),
        "skipped_steps": state.skipped_steps,
        "learning_rate": rates.learning_rate,
        "clip": rates.clip,
        "rho": rates.rho,
        "parity_steps": parity.steps,
        "parity_logp": parity.logp,
        "parity_value": parity.value,
    }
