"""Progress of the actors: the maximum per incarnation, and sums that never go back."""

from struct import Struct
from typing import NamedTuple

MAX_ACTORS = 4096
"""Incarnations that are remembered; of earlier ones only the sum is."""

_ROW = Struct("<QQ")


class ActorCounts(NamedTuple):
    """The report of an actor."""

    env_steps: int = 0
    env_failures: int = 0

    def joined(self, other: "ActorCounts") -> "ActorCounts":
        """The larger of each."""
        return ActorCounts(max(self.env_steps, other.env_steps), max(self.env_failures, other.env_failures))

    def plus(self, other: "ActorCounts") -> "ActorCounts":
        """The sums."""
        return ActorCounts(self.env_steps + other.env_steps, self.env_failures + other.env_failures)

    def to_row(self) -> bytes:
        """Packs them."""
        return _ROW.pack(*self)

    @classmethod
    def from_row(cls, row: bytes) -> "ActorCounts":
        """Inverts `to_row`."""
        return cls(*_ROW.unpack(row))


NO_COUNTS = ActorCounts()


class ActorProgress:
    """All actors; the one that reported last comes last."""

    def __init__(self, actors: dict[str, ActorCounts], gone: ActorCounts) -> None:
        self._actors = dict(actors)
        self.gone = gone
        """Sum over incarnations that are not remembered singly any more."""
        self.total = gone
        for counts in actors.values():
            self.total = self.total.plus(counts)

    def __getitem__(self, actor: str) -> ActorCounts:
        return self._actors.get(actor, NO_COUNTS)

    def take(self, actor: str, counts: ActorCounts) -> None:
        """Records an actor's new maximum."""
        known = self._actors.pop(actor, NO_COUNTS)
        self._actors[actor] = counts
        self.total = ActorCounts(*(old + new - was for old, new, was in zip(self.total, counts, known, strict=True)))

    def surplus(self, actor: str) -> str | None:
        """The actor to fold into `gone` before this one is taken."""
        is_full = actor not in self._actors and len(self._actors) >= MAX_ACTORS
        return next(iter(self._actors)) if is_full else None

    def fold(self, actor: str) -> None:
        """Moves an actor's counts into `gone`."""
        self.gone = self.gone.plus(self._actors.pop(actor))
