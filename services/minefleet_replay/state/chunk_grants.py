"""Decides which chunks may be made now. Pure: steps held and the time are passed in.

The room is `max(N, ⌈(max_staleness + 1) · N / max_reuse⌉)` steps, N = steps per iteration: as many as can still be used
before they are too stale. A chunk takes as much of it as it has steps, and until it is whole as it is expected to get.
What room is left, however little, is enough for one more chunk: so the steps that an iteration lacks can always be
made. Nothing can hold room for ever: a chunk leaves when it is trained or too stale, a grant and an incomplete chunk
when nobody speaks of them for `grant_timeout_s`.

A lease that needs all the room would wait for the slowest stream. So room is kept for no more than a stream is fast
enough for, and for no chunk that takes far longer than others, since its environment hangs, for example.

Weights that are behind get less of the room: only as much as leaves their chunk fresh when its turn comes.
"""

from collections.abc import Iterator
from typing import NamedTuple

from minefleet_replay.state.deduplication import ChunkName

MIN_HINT_S = 0.005
MAX_HINT_S = 1.0
FIRST_HINT_S = 0.05
HINTS_PER_TURN = 8
"""A refused actor asks again about so often between two moments at which room is made."""


class ExpectedSteps(NamedTuple):
    """Steps that are to come under a name."""

    reported_at: float
    since: float
    """When it was granted, or its last fragment arrived."""
    most_steps: int
    """Room that a renewal may give back to it."""
    steps: int
    """For which room is kept."""


class LastSeen:
    """Names in the order of their last report, and the steps that each is still to bring."""

    def __init__(self) -> None:
        self._seen: dict[ChunkName, ExpectedSteps] = {}
        self.steps = 0

    def __contains__(self, name: ChunkName) -> bool:
        return name in self._seen

    def __len__(self) -> int:
        return len(self._seen)

    def record(self, name: ChunkName, steps: int, now: float) -> None:
        """Records the first report of the name."""
        self._seen[name] = ExpectedSteps(now, now, steps, steps)
        self.steps += steps

    def renew(self, name: ChunkName, most_steps: int, now: float) -> None:
        """Records a later report of the name, which is to bring no more steps than this by now."""
        coming = self._seen.pop(name)  # It moves to the end.
        self._seen[name] = renewed = coming._replace(reported_at=now, steps=min(coming.most_steps, most_steps))
        self.steps += renewed.steps - coming.steps

    def drop(self, name: ChunkName) -> ExpectedSteps | None:
        """Watches the name no longer. Returns what was expected of it, if anything."""
        coming = self._seen.pop(name, None)
        self.steps -= 0 if coming is None else coming.steps
        return coming

    def silent_since(self, moment: float) -> Iterator[ChunkName]:
        """Names that did not report after `moment`, the longest silent first."""
        for name, coming in self._seen.items():
            if coming.reported_at > moment:
                return
            yield name

    def give_up(self, moment: float) -> None:
        """Expects no steps any more of what should have come since `moment`."""
        for name, coming in self._seen.items():
            if coming.since < moment:
                self._seen[name] = coming._replace(most_steps=0, steps=0)
                self.steps -= coming.steps


class RateLimiter:
    """Grants that no fragment has arrived for yet, and chunks that wait for more fragments."""

    def __init__(self, *, capacity_steps: int, grant_timeout_s: float, enabled: bool) -> None:
        self.capacity_steps = capacity_steps
        self._grant_timeout_s = grant_timeout_s
        self._enabled = enabled
        self._grants = LastSeen()
        self._incomplete = LastSeen()

    @property
    def granted_chunks(self) -> int:
        """Chunks that are granted and not begun."""
        return len(self._grants)

    @property
    def coming_steps(self) -> int:
        """Steps for which room is kept."""
        return self._grants.steps + self._incomplete.steps

    def free_steps(self, held_steps: int, fresh_steps: int | None = None) -> int:
        """Room that is left; arguments as for `reserve`."""
        capacity_steps = self.capacity_steps if fresh_steps is None else min(self.capacity_steps, fresh_steps)
        return max(0, capacity_steps - held_steps - self.coming_steps) if self._enabled else capacity_steps

    def has_granted(self, name: ChunkName) -> bool:
        """Whether the chunk is granted, and not begun."""
        return name in self._grants

    def reserve(self, name: ChunkName, steps: int, held_steps: int, now: float, fresh_steps: int | None = None) -> bool:
        """Grants a chunk that has not begun, or renews its grant, if there is room.

        Args:
            name: The chunk.
            steps: That it shall have at most. A grant that is renewed never takes more room than at first.
            held_steps: Steps that exist.
            now: The time, seconds.
            fresh_steps: Steps that may be used before it without making it stale; None when that is no limit.
        """
        if not self._enabled:
            return True
        if name in self._grants:
            self._grants.renew(name, steps, now)
            return True
        granted = self.free_steps(held_steps, fresh_steps) > 0
        if granted:
            self._grants.record(name, steps, now)
        return granted

    def renew(self, name: ChunkName, steps: int, now: float) -> None:
        """Somebody still works on an incomplete chunk, and can bring at most so many steps more."""
        if name in self._incomplete:
            self._incomplete.renew(name, steps, now)

    def begin(self, name: ChunkName, steps: int, missing_steps: int, now: float) -> None:
        """A fragment of an incomplete chunk has arrived: what the chunk still lacks takes the place of its grant."""
        coming = self._grants.drop(name) or self._incomplete.drop(name)
        most_steps = missing_steps if coming is None else min(missing_steps, max(0, coming.most_steps - steps))
        self._incomplete.record(name, most_steps, now)
        if coming is not None:
            self._incomplete.renew(name, max(0, coming.steps - steps), now)

    def revoke(self, name: ChunkName) -> None:
        """The chunk is not made, or could not be used."""
        self._grants.drop(name)

    def end_chunk(self, name: ChunkName) -> None:
        """The chunk is whole, or gone."""
        self._grants.drop(name)
        self._incomplete.drop(name)

    def give_up(self, moment: float) -> None:
        """Keeps no room any more for what should have come since `moment`; it may come all the same."""
        self._grants.give_up(moment)
        self._incomplete.give_up(moment)

    def expire(self, now: float) -> list[ChunkName]:
        """Takes back the grants of streams that fell silent. Returns incomplete chunks that nobody works on."""
        moment = now - self._grant_timeout_s
        for name in list(self._grants.silent_since(moment)):
            self._grants.drop(name)
        return list(self._incomplete.silent_since(moment))


class RetryAfter:
    """When a refused actor shall ask again: a small share of the time between two moments at which room was made."""

    def __init__(self) -> None:
        self._last: float | None = None
        self.retry_after_s = FIRST_HINT_S

    def room_was_made(self, now: float) -> None:
        """Records a moment."""
        if self._last is not None:
            self.retry_after_s = min(max((now - self._last) / HINTS_PER_TURN, MIN_HINT_S), MAX_HINT_S)
        self._last = now
