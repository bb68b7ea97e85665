"""Makes streams wait for others, so that each gets its share of the trained steps. Pure.

A group is a stream (`balance: slot`) or a task (`balance: task`). Its level is the number of its steps that were
appended, less those that left untrained, by its weight. Who plays may begin a chunk while its group stands at most one
chunk for each of its streams above the lowest level of those that play:

    level of a group   ▇▇▇▇▇▇▇▇▇▇▇▇│▒▒▒│         a stream of this one may begin a chunk
                       ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇│▒▒▒      a stream of this one waits
                                   ▲   ▲
                              lowest   one chunk for each stream above it

Nothing is owed: a stream that its actor has not spoken of for `LAPSE_S` is not waited for (it has died, or resets for
longer than it used to), and its group comes back with the lowest level of the others. Nor is the fleet slowed without
end: the lowest level rises at least so fast that those that keep up with it have all that the fleet would have without
this, divided by `balance_limit`; what others lack then, they are let off.
"""

from collections import Counter, deque
from statistics import median

from minefleet_replay.state.limits import Limits
from minefleet_replay.state.stream_pace import Streams

LAPSE_S = 10.0
MAX_GROUPS = 10_000
"""That are remembered while nobody plays in them."""
SAMPLES = 8
"""Of what training takes, of which the median counts."""


class Balance:
    """The levels of all groups."""

    def __init__(self, limits: Limits, streams: Streams) -> None:
        self._limits = limits
        self._streams = streams
        self._levels: dict[str, float] = {}
        self._playing: Counter[str] = Counter()
        """The streams of each group that play."""
        self._level, self._at = 0.0, 0.0
        self._trainings = deque[float](maxlen=SAMPLES)
        self._acked_at = 0.0
        self._behind = set[str]()
        """The groups that are too slow for the limit: they have not a step more than they are let off."""
        self.let_off: Counter[str] = Counter()
        """Steps that tasks lacked in the end."""

    def count(self, stream: str, task: str, steps: int) -> None:
        """So many steps were appended; or left untrained, when negative."""
        group = self._group(stream, task)
        if group in self._levels:
            self._levels[group] += steps / self._weight(group)

    def trained(self, leased_at: float, now: float) -> None:
        """The learner has trained on a lease."""
        self._trainings.append(now - max(leased_at, self._acked_at))
        self._acked_at = now

    def update(self, now: float) -> None:
        """Updates which streams play now, and removes silent ones."""
        playing = Counter(self._group(name, task) for name, task in self._streams.playing(now - LAPSE_S))
        for group in playing:
            if group not in self._playing:
                self._levels[group] = max(self._level, self._levels.get(group, 0.0))
        if len(self._levels) > MAX_GROUPS:
            self._levels = {group: self._levels[group] for group in playing}
        self._playing = playing
        levels = [self._levels[group] for group in playing]
        risen = self._level + self._least_pace() * (now - self._at)
        self._level, self._at = max(min(levels, default=0.0), min(risen, max(levels, default=0.0))), now
        lacks = {group: self._level - self._allowance(group) - self._levels[group] for group in playing}
        self._behind = {group for group, lack in lacks.items() if lack > -1}
        for group, lack in lacks.items():
            if lack > 0:
                self._levels[group] += lack
                task = self._streams.task(group) if self._limits.balance == "slot" else group
                self.let_off[task] += round(lack * self._weight(group))

    def is_ahead(self, stream: str) -> bool:
        """Whether a stream is to wait for others."""
        group = self._group(stream, self._streams.task(stream))
        return group in self._playing and self._levels[group] > self._level + self._allowance(group)

    def _group(self, stream: str, task: str) -> str:
        return stream if self._limits.balance == "slot" else task

    def _weight(self, group: str) -> float:
        return self._limits.task_weights.get(group, 1.0)

    def _allowance(self, group: str) -> float:
        return self._playing[group] * self._limits.chunk_steps / self._weight(group)

    def _least_pace(self) -> float:
        """The least speed at which the lowest level rises, per second.

        Those that keep up with it make up for others.
        """
        playing_pace = self._streams.rate
        trained_s = median(self._trainings) if self._trainings else 0.0
        fresh_steps = self._limits.steps_per_iteration / self._limits.max_reuse
        pace = min(playing_pace, fresh_steps / trained_s) if trained_s else playing_pace
        weights = sum(self._weight(group) for group in self._playing.keys() - self._behind)
        return pace / self._limits.balance_limit / weights if weights else 0.0
