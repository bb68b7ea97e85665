"""Counts what became of the steps of each task and each stream, in memory, since replay started."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from minefleet.rpc.durations import duration
from minefleet.v1 import replay_service_pb2
from minefleet_replay.state.chunk import FragmentEntry
from minefleet_replay.state.deduplication import MAX_STREAMS

MAX_TASKS = 1000
"""Tasks that are counted apart; those after them are counted together."""
OTHER_TASK = "other"
MAX_STARVED = 5
"""Streams that are named."""
STARVED_SHARE = 0.5
RECENT = 4
"""Settled fragments of a stream by which it is judged."""
PLAYED, TRAINED, STALE = "played", "trained", "stale"


class StepUse(NamedTuple):
    """Sums over trained steps, at their first use."""

    staleness: int
    age_s: float
    """From the beginning of the step's chunk until it was leased, seconds."""

    def plus(self, other: "StepUse") -> "StepUse":
        """Both together."""
        return StepUse(self.staleness + other.staleness, self.age_s + other.age_s)


NO_USE = StepUse(0, 0.0)


class TaskSteps(NamedTuple):
    """The steps of a task or a stream."""

    name: str
    counts: Counter[str]
    """Those played, those trained on, and those that left without, by reason."""
    too_slow: int
    needed_s: float = 0.0
    """The window that the slowest of those needs."""
    let_off: int = 0
    """Steps that `balance` let it off."""
    use: StepUse = NO_USE

    def to_proto(self) -> replay_service_pb2.StepAccount:
        """As it travels."""
        dropped = {reason: steps for reason, steps in self.counts.items() if reason not in (PLAYED, TRAINED)}
        return replay_service_pb2.StepAccount(
            name=self.name,
            played=self.counts[PLAYED],
            trained=self.counts[TRAINED],
            dropped=dropped,
            too_slow=self.too_slow,
            needed_window=duration(self.needed_s) if self.too_slow else None,
            let_off=self.let_off,
            trained_staleness=self.use.staleness,
            trained_age=duration(self.use.age_s),
        )


class StepCounter:
    """The counts."""

    def __init__(self) -> None:
        self._tasks: dict[str, Counter[str]] = {}
        self._streams: dict[str, Counter[str]] = {}
        self._recent: dict[str, deque[bool]] = {}
        """By stream, whether its last fragments were trained on, among those that were, or became too stale."""
        self._task_of: dict[str, str] = {}
        self._uses: dict[str, StepUse] = {}

    def count(self, stream: str, fragments: Iterable[FragmentEntry], what: str) -> None:
        """Counts the steps of fragments: played, trained, or the reason for which they left without."""
        for fragment in fragments:
            task = self._task(fragment)
            self._tasks.setdefault(task, Counter())[what] += fragment.steps
            if stream not in self._streams and len(self._streams) >= MAX_STREAMS:
                self._forget(next(iter(self._streams)))
            self._streams.setdefault(stream, Counter())[what] += fragment.steps
            self._task_of[stream] = task
            if what in (TRAINED, STALE):
                self._recent.setdefault(stream, deque(maxlen=RECENT)).append(what == TRAINED)

    def used(self, fragments: Iterable[FragmentEntry], staleness: int, age_s: float) -> None:
        """Records how stale fragments were when they were trained on for the first time."""
        for fragment in fragments:
            use = StepUse(staleness * fragment.steps, age_s * fragment.steps)
            task = self._task(fragment)
            self._uses[task] = self._uses.get(task, NO_USE).plus(use)

    def tasks(self, too_slow: Mapping[str, float], let_off: Mapping[str, int]) -> list[TaskSteps]:
        """All tasks.

        Args:
            too_slow: The streams that are refused now, with the windows that they need, seconds.
            let_off: Steps that tasks were let off.
        """
        slow: dict[str, list[float]] = {}
        for stream, needed_s in too_slow.items():
            slow.setdefault(self._task_of.get(stream, ""), []).append(needed_s)
        return [
            TaskSteps(
                task,
                counts,
                len(slow.get(task, ())),
                max(slow.get(task, ()), default=0.0),
                let_off.get(task, 0),
                self._uses.get(task, NO_USE),
            )
            for task, counts in self._tasks.items()
        ]

    def of_streams(self, streams: Iterable[str]) -> list[TaskSteps]:
        """The streams among these that are known."""
        return [TaskSteps(one, self._streams[one], 0) for one in streams if one in self._streams]

    def loses_most(self, stream: str) -> bool:
        """Whether most of the stream's last fragments became too stale."""
        recent = self._recent.get(stream, ())
        return len(recent) == RECENT and sum(recent) < STARVED_SHARE * RECENT

    def starved(self, too_slow: Mapping[str, float]) -> list[TaskSteps]:
        """The streams of whose steps, among those that are settled, the fewest are trained on."""
        shares = {stream: _trained_share(counts) for stream, counts in self._streams.items()}
        starved = sorted((share, stream) for stream, share in shares.items() if share < STARVED_SHARE)
        return [
            TaskSteps(one, self._streams[one], int(one in too_slow), too_slow.get(one, 0.0))
            for _, one in starved[:MAX_STARVED]
        ]

    def _task(self, fragment: FragmentEntry) -> str:
        return fragment.task if fragment.task in self._tasks or len(self._tasks) < MAX_TASKS else OTHER_TASK

    def _forget(self, stream: str) -> None:
        del self._streams[stream]
        del self._task_of[stream]
        self._recent.pop(stream, None)


def _trained_share(counts: Counter[str]) -> float:
    complete = counts.total() - counts[PLAYED]
    return counts[TRAINED] / complete if complete else 1.0
