"""Lets a limited number of processes start or reset their environments at the same time, first come first served."""

import itertools


class StartLimiter:
    """Admits at most `limit` at a time; 0 sets no limit.

    A start and the first reset after it count as one coming: a process that was admitted to start does not queue for
    its reset behind others' starts, which may take minutes each.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = itertools.count()
        self._tickets: dict[int, int] = {}
        self._waiting: set[int] = set()
        self._inside: set[int] = set()

    def __len__(self) -> int:
        """Number of those inside."""
        return len(self._inside)

    def enter(self, index: int) -> bool:
        """Whether it is inside; if not, it waits for `admit` to name it."""
        ticket = self._tickets.setdefault(index, next(self._count))
        if index not in self._inside and (self._is_full or any(self._tickets[one] < ticket for one in self._waiting)):
            self._waiting.add(index)
            return False
        self._waiting.discard(index)
        self._inside.add(index)
        return True

    def leave(self, index: int, *, comes_back: bool = False) -> None:
        """Makes room, from inside or from the queue; one that comes back keeps its turn."""
        self._inside.discard(index)
        self._waiting.discard(index)
        if not comes_back:
            self._tickets.pop(index, None)

    def admit(self) -> int | None:
        """Admits the next one and returns it; None while there is no room or none waits."""
        if self._is_full or not self._waiting:
            return None
        index = min(self._waiting, key=self._tickets.__getitem__)
        self._waiting.remove(index)
        self._inside.add(index)
        return index

    @property
    def _is_full(self) -> bool:
        return 0 < self._limit <= len(self._inside)
