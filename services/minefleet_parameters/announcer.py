"""Announces versions to watchers.

    a commit, a pin, another watcher that films ── renew ──▶ announcement ── newer_than ──▶ every watch

There is one announcement, replaced as a whole, so a watch costs no queue, and a slow one misses some. Watches wake for
news alone: a newer version, or another watcher that films.
"""

import asyncio
import logging

from minefleet.core.errors import UnavailableError
from minefleet.v1 import parameters_service_pb2 as pb
from minefleet_parameters.store import ParameterStore

logger = logging.getLogger(__name__)


class Announcer:
    """Holds the announcement and wakes the watches. Belongs to one event loop."""

    def __init__(self, store: ParameterStore) -> None:
        self._store = store
        self.films = ""
        """The watcher that films; empty while none can."""
        self._announcement = pb.WatchResponse()
        self._number = 0
        self._changed = asyncio.Event()
        self._draining = False

    def renew(self) -> None:
        """Brings the announcement up to date; wakes the watches if it has news."""
        if not self._store.kept:
            return
        before, self._announcement = self._announcement, pb.WatchResponse(newest=self._store.info(), films=self.films)
        if _differs(before, self._announcement):
            self._number += 1
            self._wake()

    def film(self, watcher: str) -> None:
        """Names the watcher that films from now on; none if empty."""
        self.films = watcher
        self.renew()

    async def newer_than(self, number: int) -> tuple[int, pb.WatchResponse]:
        """Waits for news after those of this number (0 for none); returns their number and the announcement.

        Raises:
            UnavailableError: Once the server drains.
        """
        while not self._draining:
            if self._number > number:
                return self._number, self._announcement
            await self._changed.wait()
        raise UnavailableError("parameters is draining")

    def drain(self) -> None:
        """Ends every wait."""
        self._draining = True
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _differs(before: pb.WatchResponse, after: pb.WatchResponse) -> bool:
    return (before.newest.version, before.films) != (after.newest.version, after.films)
