"""Which wishes are pending, and who has claimed them.

A wish may be claimed by `count` actors. A claim lasts until it is reported done, or for `CLAIM_TIMEOUT_S`: then the
wish is pending again. What is done survives a restart; a claim does not, so its wish is pending again after one.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from minefleet.errors import CorruptError, NotFoundError
from minefleet.v1 import weights_pb2

CLAIM_TIMEOUT_S = 60.0
"""Actors renew a claim for as long as its episode lasts; one that has died does not keep the wish from others."""

MAX_WISHES = 1000
"""Wishes that are remembered. Beyond, the oldest are forgotten: fulfilled ones first."""


@dataclass(slots=True)
class _Entry:
    wish: weights_pb2.Wish
    done: set[str] = field(default_factory=set)
    claims: dict[str, float] = field(default_factory=dict)
    """Actor to when its claim ends."""

    @property
    def is_fulfilled(self) -> bool:
        return len(self.done) >= self.wish.count

    @property
    def is_taken(self) -> bool:
        return len(self.done) + len(self.claims) >= self.wish.count


class WishBook:
    """Knows every wish of the run. Not thread-safe.

    Args:
        clock: Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: dict[str, _Entry] = {}

    def add(self, wishes: Iterable[weights_pb2.Wish]) -> None:
        """Adds wishes; those of a known name are known already."""
        for wish in wishes:
            self._entries.setdefault(wish.name, _Entry(wish))
        surplus = len(self._entries) - MAX_WISHES
        for entry in sorted(self._entries.values(), key=lambda entry: not entry.is_fulfilled)[: max(surplus, 0)]:
            del self._entries[entry.wish.name]

    def pending(self) -> list[weights_pb2.Wish]:
        """Wishes that somebody may claim now, oldest first."""
        self._expire()
        return [entry.wish for entry in self._entries.values() if not entry.is_taken]

    def next_end_s(self) -> float | None:
        """Returns in how many seconds the next claim ends; None if there is none."""
        self._expire()
        ends = [end for entry in self._entries.values() for end in entry.claims.values()]
        return min(ends) - self._clock() if ends else None

    def claim(self, name: str, actor: str) -> bool:
        """Claims a wish for an actor; true if it is the actor's now. Repeating renews the claim.

        Raises:
            NotFoundError: If nobody wished that.
        """
        entry = self._entry(name)
        if actor in entry.done or (actor not in entry.claims and entry.is_taken):
            return False
        entry.claims[actor] = self._clock() + CLAIM_TIMEOUT_S
        return True

    def done(self, name: str, actor: str) -> bool:
        """Reports a wish done; false if others have taken it meanwhile.

        Raises:
            NotFoundError: If nobody wished that.
        """
        entry = self._entry(name)
        if actor in entry.done:
            return True
        if actor not in entry.claims and entry.is_taken:
            return False
        entry.claims.pop(actor, None)
        entry.done.add(actor)
        return True

    def to_json(self) -> str:
        """What `read` takes."""
        return json.dumps(
            [
                {"name": name, "kind": entry.wish.kind, "count": entry.wish.count, "done": sorted(entry.done)}
                for name, entry in self._entries.items()
            ]
        )

    def read(self, text: str | bytes) -> None:
        """Takes over what `to_json` gave.

        Raises:
            CorruptError: If it is something else.
        """
        try:
            for row in json.loads(text):
                wish = weights_pb2.Wish(name=row["name"], kind=row["kind"], count=row["count"])
                self._entries[wish.name] = _Entry(wish, set(row["done"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(f"the file of wishes is damaged: {error}. Remove it to go on without them") from error

    def _entry(self, name: str) -> _Entry:
        self._expire()
        if name not in self._entries:
            raise NotFoundError(f"there is no wish {name[:80]!r}")
        return self._entries[name]

    def _expire(self) -> None:
        now = self._clock()
        for entry in self._entries.values():
            entry.claims = {actor: end for actor, end in entry.claims.items() if end > now}
