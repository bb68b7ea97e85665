"""Decides which chunks may be made now. Pure: chunks held and the time are passed in.

The room is `max(N, ⌈(max_staleness + 1) · N / max_reuse⌉)` fragments, N = fragments per iteration: as many as can
still be used before they are too stale. It is counted in whole chunks, and a chunk counts as whole from its grant on,
or from its first fragment where it had none. Nothing can hold room for ever: a chunk leaves when it is trained or too
stale, a grant and an incomplete chunk when nobody speaks of them for `grant_timeout_s`.

Weights that are behind get less of the room: only as much as leaves their chunk fresh when its turn comes.
"""

from collections.abc import Iterator

from minefleet_replay.names import ChunkName

SHORTEST_HINT_S = 0.005
LONGEST_HINT_S = 1.0
FIRST_HINT_S = 0.05
HINTS_PER_TURN = 8
"""A refused actor asks again about so often between two moments at which room is made."""


def room_in_chunks(
    *, fragments_per_iteration: int, fragments_per_chunk: int, max_reuse: int, max_staleness: int, max_chunks: int
) -> int:
    """Chunks that may exist or be under way."""
    wanted = -(-(max_staleness + 1) * fragments_per_iteration // max_reuse)
    fragments = max(fragments_per_iteration, wanted)
    return min(-(-fragments // fragments_per_chunk), max_chunks)


class Watchlist:
    """Names in the order in which they were last heard of."""

    def __init__(self) -> None:
        self._heard: dict[ChunkName, float] = {}

    def __contains__(self, name: ChunkName) -> bool:
        return name in self._heard

    def __len__(self) -> int:
        return len(self._heard)

    def hear(self, name: ChunkName, now: float) -> None:
        """Notes that somebody spoke of the name, for the first time or again."""
        self._heard.pop(name, None)
        self._heard[name] = now

    def drop(self, name: ChunkName) -> None:
        """Watches the name no longer."""
        self._heard.pop(name, None)

    def silent_since(self, moment: float) -> Iterator[ChunkName]:
        """Names not heard of after `moment`, the longest silent first."""
        for name, heard in self._heard.items():
            if heard > moment:
                return
            yield name


class Pacing:
    """Grants that no fragment has arrived for yet, and chunks that wait for more fragments."""

    def __init__(self, *, room_chunks: int, grant_timeout_s: float, enabled: bool) -> None:
        self._room_chunks = room_chunks
        self._grant_timeout_s = grant_timeout_s
        self._enabled = enabled
        self._grants = Watchlist()
        self._incomplete = Watchlist()

    @property
    def granted_chunks(self) -> int:
        """Chunks that are granted and not begun."""
        return len(self._grants)

    def free_chunks(self, held_chunks: int, fresh_chunks: int | None = None) -> int:
        """Chunks that could be granted now; arguments as for `reserve`."""
        room_chunks = self._room_chunks if fresh_chunks is None else min(self._room_chunks, fresh_chunks)
        return max(0, room_chunks - held_chunks - len(self._grants)) if self._enabled else room_chunks

    def reserve(self, name: ChunkName, held_chunks: int, now: float, fresh_chunks: int | None = None) -> bool:
        """Grants a chunk that has not begun, or renews its grant, if there is room.

        Args:
            name: The chunk.
            held_chunks: Chunks that exist.
            now: The time, seconds.
            fresh_chunks: Chunks that may be used before it without making it stale; None when that is no limit.
        """
        if not self._enabled:
            return True
        granted = name in self._grants or self.free_chunks(held_chunks, fresh_chunks) > 0
        if granted:
            self._grants.hear(name, now)
        return granted

    def renew(self, name: ChunkName, now: float) -> None:
        """Somebody still works on an incomplete chunk."""
        if name in self._incomplete:
            self._incomplete.hear(name, now)

    def begin(self, name: ChunkName, now: float) -> None:
        """A fragment has arrived, and more are to come: the chunk itself takes the place of its grant."""
        self._grants.drop(name)
        self._incomplete.hear(name, now)

    def revoke(self, name: ChunkName) -> None:
        """Nothing made with this grant could be used."""
        self._grants.drop(name)

    def settle(self, name: ChunkName) -> None:
        """The chunk is whole, or gone."""
        self._grants.drop(name)
        self._incomplete.drop(name)

    def expire(self, now: float) -> list[ChunkName]:
        """Takes back the grants of streams that fell silent. Returns incomplete chunks that nobody works on."""
        moment = now - self._grant_timeout_s
        for name in list(self._grants.silent_since(moment)):
            self._grants.drop(name)
        return list(self._incomplete.silent_since(moment))


class Hint:
    """When a refused actor shall ask again: a small share of the time between two moments at which room was made."""

    def __init__(self) -> None:
        self._last: float | None = None
        self.retry_after_s = FIRST_HINT_S

    def room_was_made(self, now: float) -> None:
        """Notes a moment."""
        if self._last is not None:
            self.retry_after_s = min(max((now - self._last) / HINTS_PER_TURN, SHORTEST_HINT_S), LONGEST_HINT_S)
        self._last = now
