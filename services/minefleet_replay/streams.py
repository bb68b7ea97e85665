"""What actors say of their streams: how fast each plays, and which chunks are being made."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from minefleet_replay.names import ChunkName

TRY_S = 30.0
"""A stream that is too slow makes a chunk every so often all the same: it may have become faster."""


class StreamState(NamedTuple):
    """A stream, as its actor reports it."""

    name: str
    chunk: int
    """That it is making, or is to make next."""
    oldest_version: int | None
    """That has acted in it; None where it has not begun."""
    step_s: float
    """How long a step takes, as far as is known; 0 for not at all."""


class Begun(NamedTuple):
    """A chunk that is being made, or is on its way."""

    oldest_version: int
    step_s: float
    since: float
    """When it was first heard of."""


class Streams:
    """The streams that are played in."""

    def __init__(self) -> None:
        self._step_s: dict[str, tuple[float, float]] = {}
        """How long a step takes, and when that was heard."""
        self._begun: dict[ChunkName, Begun] = {}
        self._tried: dict[str, float] = {}
        self._slow: dict[str, float] = {}
        """The windows that streams need which are too slow, seconds."""

    def __len__(self) -> int:
        return len(self._step_s)

    def hear(self, state: StreamState, now: float) -> None:
        """Takes what an actor says."""
        self._step_s[state.name] = state.step_s, now
        name = ChunkName(state.name, state.chunk)
        if state.oldest_version is not None and name not in self._begun:
            self._begun[name] = Begun(state.oldest_version, state.step_s, now)

    def whole(self, name: ChunkName) -> None:
        """A chunk is whole, or gone: it is not made any more."""
        self._begun.pop(name, None)

    def expire(self, moment: float) -> None:
        """Forgets the streams that have not been heard of since."""
        self._step_s = {name: known for name, known in self._step_s.items() if known[1] >= moment}
        self._begun = {name: begun for name, begun in self._begun.items() if name.stream in self._step_s}
        self._tried, self._slow = (
            {name: value for name, value in known.items() if name in self._step_s}
            for known in (self._tried, self._slow)
        )

    def step_s(self, name: str) -> float:
        """How long a step of the stream takes, seconds; 0 where that is not known."""
        return self._step_s.get(name, (0.0, 0.0))[0]

    def steps_s(self) -> Iterator[float]:
        """How long a step of each stream takes, seconds."""
        return (step_s for step_s, _ in self._step_s.values())

    def may_try(self, name: str, needed_s: float, now: float) -> bool:
        """Whether a stream that is too slow, and needs such a window, may show once more how fast it is."""
        self._slow[name] = needed_s
        is_due = now - self._tried.get(name, -TRY_S) >= TRY_S
        if is_due:
            self._tried[name] = now
        return is_due

    def fast_enough(self, name: str) -> None:
        """A stream is not too slow, or no longer."""
        self._slow.pop(name, None)

    @property
    def too_slow(self) -> Mapping[str, float]:
        """The streams that are, and the windows that they need, seconds."""
        return self._slow

    def begun_by(self, version: int) -> Iterator[Begun]:
        """The chunks that this version has begun."""
        return (begun for begun in self._begun.values() if begun.oldest_version == version)
