"""Records who watches for versions, and the versions that they run; chooses the one that films."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from minefleet_parameters.announcer import Announcer
from minefleet_parameters.metrics import ParametersMetrics
from minefleet_runtime.process_setup import most_open_files
from minefleet_runtime.role_status import StatusTracker

logger = logging.getLogger(__name__)

CROWDED_SHARE = 0.8
"""A warning is given when open watches take this share of the files that the process may open."""
RECONNECT_S = 10.0
"""So long the watcher that films is waited for: every watch ends now and then, and is opened anew."""
Key = TypeVar("Key", str, int)


class Watchers:
    """Counts the open watches, and the versions that those who watch say they run. Chooses the one that films.

    A watcher that reconnects has two watches for a while. It is one watcher until both have ended.
    """

    def __init__(self, metrics: ParametersMetrics, status: StatusTracker, announcer: Announcer) -> None:
        self._metrics = metrics
        self._status = status
        self._open = 0
        self._announcer = announcer
        self._watches: dict[str, int] = {}
        self._cameras: dict[str, int] = {}
        """Watches of those that can film, the first to come first."""
        self._running: dict[str, int] = {}
        self._versions: dict[int, int] = {}

    @contextmanager
    def watching(self, name: str, version: int, *, can_film: bool = False) -> Iterator[None]:
        """Counts a watch while the block lasts. The empty name stands for many: what those run is not known."""
        self._open += 1
        _count(self._watches, name, 1)
        self.runs(name, version)
        if can_film and name:
            _count(self._cameras, name, 1)
            if not self._announcer.films:
                self._choose()
        if self._open == int(CROWDED_SHARE * most_open_files()):
            logger.warning("%d watches are open; this process may open %d files", self._open, most_open_files())
        try:
            yield
        finally:
            self._open -= 1
            _count(self._watches, name, -1)
            self.runs(name, self._running.get(name, 0))
            if can_film and name:
                _count(self._cameras, name, -1)
            if name and name == self._announcer.films:
                asyncio.get_running_loop().call_later(RECONNECT_S, self._choose)

    def runs(self, name: str, version: int) -> None:
        """Records the version that a watcher runs, 0 for none. Ignores processes that do not watch."""
        _count(self._versions, self._running.pop(name, 0), -1)
        if name and version and name in self._watches:
            self._running[name] = version
            _count(self._versions, version, 1)
        self._report()

    def _choose(self) -> None:
        """Makes another watcher film, if the one that does is away."""
        if self._announcer.films not in self._cameras:
            self._announcer.film(next(iter(self._cameras), ""))

    def _report(self) -> None:
        oldest = min(self._versions, default=0)
        self._metrics.watchers.set(self._open)
        self._metrics.oldest_running_version.set(oldest)
        self._status.set_stats({"watchers": self._open, "oldest_running_version": oldest})


def _count(counts: dict[Key, int], key: Key, change: int) -> None:
    """Changes a count, and forgets what is counted 0 times."""
    counts[key] = counts.get(key, 0) + change
    if counts[key] <= 0:
        del counts[key]
