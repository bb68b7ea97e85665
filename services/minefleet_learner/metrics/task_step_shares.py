"""Computes each task's share of the played and of the trained steps, and finds tasks that starve."""

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from minefleet.config import FleetConfig
from minefleet.rpc.durations import in_seconds
from minefleet.rpc.replay_types import Lease
from minefleet.v1.replay_service_pb2 import StepAccount
from minefleet_learner.metrics.episode_window import bounded

WINDOW = 20
"""Iterations that shares are taken over."""
FIRST_ITERATIONS = 10
"""Iterations that no warning counts: what is lost before replay knows any pace says nothing of the run."""
LET_OFF_SHARE = 0.05
"""Of the trained steps; where `balance` lets tasks off so many, it is said."""
STARVED_SHARE = 0.5
"""A task starves whose share of the trained steps is less than so much of its share of the played ones."""
PLAYED, TRAINED, LET_OFF = "played", "trained", "let off"
STALENESS, AGE_MS = "staleness", "age"
"""Sums over trained steps, at their first use: in versions, and in milliseconds."""
SUMS = (PLAYED, TRAINED, LET_OFF, STALENESS, AGE_MS)
"""Counts of a task besides the reasons for which steps were dropped."""

Counts = dict[str, Counter[str]]


class StepShares:
    """Follows what replay counts."""

    def __init__(self, config: FleetConfig) -> None:
        self._config = config
        self._marks: deque[Counts] = deque(maxlen=WINDOW + 1)
        self._iterations = 0
        self.starved_for = 0
        """Iterations in a row in which a task has starved, or was too slow."""

    def summary(self, answers: Sequence[Lease]) -> dict[str, Any]:
        """The shares of an iteration, from the latest answers of all shards."""
        counts = self._counts(answers)
        if self._marks and _went_back(self._marks[-1], counts):
            self._marks.clear()
        self._marks.append(counts)
        self._iterations += 1
        slow = _slow(answers)
        too_slow = {name: len(needed) for name, needed in slow.items()}
        shares = shares_of(_grown(self._marks[0], counts), too_slow)
        streams = [_described(account) for answer in answers for account in answer.starved_streams]
        warnings = {f"too slow: {task}": self._advice(task, needed, answers) for task, needed in sorted(slow.items())}
        complete = list(self._marks)[max(0, FIRST_ITERATIONS + len(self._marks) - self._iterations - 1) :]
        known = shares_of(_grown(complete[0], counts), too_slow) if len(complete) > WINDOW // 2 else {}
        warnings |= {f"starved: {task}": said for task, said in starved(known) if f"too slow: {task}" not in warnings}
        self.starved_for = self.starved_for + 1 if warnings else 0
        warnings |= self._unbalanced(known)
        return {"step_shares": shares, "starved_streams": streams, "step_warnings": warnings}

    def _counts(self, answers: Sequence[Lease]) -> Counts:
        counts: Counts = {}
        most = self._config.rollout_config.episode_statistics_config.max_tasks
        for answer in answers:
            for account in answer.tasks:
                name = bounded(account.name, counts, most + 1)
                counts.setdefault(name, Counter()).update(
                    {
                        PLAYED: account.played,
                        TRAINED: account.trained,
                        LET_OFF: account.let_off,
                        STALENESS: account.trained_staleness,
                        AGE_MS: round(1000 * in_seconds(account.trained_age)),
                        **account.dropped,
                    }
                )
        return counts

    def _unbalanced(self, shares: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
        """Messages about tasks that lack steps although the run is balanced."""
        trained = sum(share["trained_steps"] for share in shares.values())
        limit = self._config.rollout_config.replay_buffer_config.balance_limit
        return {
            f"unbalanced: {task}": f"{_quoted(task)} is too slow for its share of the trained steps: it has "
            f"{share['trained_share']:.2%} of them, since rollout_config.replay_buffer_config.balance_limit={limit:g} "
            "bounds how long others wait. A larger one, or more of its environments, would give it more"
            for task, share in shares.items()
            if share["let_off_steps"] > LET_OFF_SHARE * trained
        }

    def _advice(self, task: str, needed: Sequence[float], answers: Sequence[Lease]) -> str:
        """The values that would let the streams of a task be trained on."""
        buffer, train = self._config.rollout_config.replay_buffer_config, self._config.train_config
        window_s = min((answer.window_s for answer in answers if answer.window_s), default=0.0)
        interval_s = max((answer.interval_s for answer in answers), default=0.0)
        more = math.ceil((max(needed) - window_s) / interval_s) if interval_s else 1
        times = max(needed) / window_s if window_s else 2.0
        return (
            f"{_plural(len(needed), 'environment')} of {_quoted(task)} cannot be trained on: the shortest fragment "
            f"(min_fragment_length={self._config.least_steps} steps) takes up to {max(needed):.1f} s, and is too stale "
            f"after {window_s:.1f} s. rollout_config.replay_buffer_config.max_staleness={buffer.max_staleness + more} "
            f"lets it be, or train_config.batches_per_iteration={math.ceil(times * train.batches_per_iteration)}"
        )


def shares_of(grown: Counts, too_slow: Mapping[str, int]) -> dict[str, Any]:
    """The shares of tasks, from their counts."""
    played, trained = (sum(counts[what] for counts in grown.values()) for what in (PLAYED, TRAINED))
    return {
        task: {
            "played_steps": counts[PLAYED],
            "trained_steps": counts[TRAINED],
            "played_share": counts[PLAYED] / played if played else 0.0,
            "trained_share": counts[TRAINED] / trained if trained else 0.0,
            "dropped_steps": {why: steps for why, steps in sorted(counts.items()) if why not in SUMS and steps},
            "let_off_steps": counts[LET_OFF],
            "staleness": counts[STALENESS] / counts[TRAINED] if counts[TRAINED] else 0.0,
            "age_s": counts[AGE_MS] / 1000 / counts[TRAINED] if counts[TRAINED] else 0.0,
            "too_slow": too_slow.get(task, 0),
        }
        for task, counts in sorted(grown.items())
    }


def starved(shares: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """The tasks of which much less is trained on than is played, and what is to be said of each."""
    for task, share in shares.items():
        if share["trained_share"] < STARVED_SHARE * share["played_share"]:
            why = ", ".join(f"{steps:,} {reason}" for reason, steps in share["dropped_steps"].items())
            yield (
                task,
                f"{_quoted(task)} is {share['played_share']:.2%} of the steps that were played lately and "
                f"{share['trained_share']:.2%} of those that were trained on" + (f" (dropped: {why})" if why else ""),
            )


def _went_back(before: Counts, now: Counts) -> bool:
    """Whether replay has begun to count anew."""
    return any(now.get(task, Counter())[PLAYED] < counts[PLAYED] for task, counts in before.items())


def _grown(before: Counts, now: Counts) -> Counts:
    return {task: counts - before.get(task, Counter()) for task, counts in now.items()}


def _slow(answers: Sequence[Lease]) -> dict[str, list[float]]:
    """By task, the windows that its streams need which are too slow, seconds; of one shard all like the longest."""
    slow: dict[str, list[float]] = {}
    for answer in answers:
        for account in answer.tasks:
            if account.too_slow:
                slow.setdefault(account.name, []).extend([in_seconds(account.needed_window)] * account.too_slow)
    return slow


def _described(account: StepAccount) -> dict[str, Any]:
    return {
        "stream": account.name,
        "played_steps": account.played,
        "trained_steps": account.trained,
        "dropped_steps": dict(sorted(account.dropped.items())),
    }


def _quoted(task: str) -> str:
    return f"task {task!r}" if task else "the run"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("s" if count > 1 else "")
