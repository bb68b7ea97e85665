"""A thread that does what time brings, once a second.

It waits on `stopping` between ticks; `stopping` also lets it end the waits of learners, so that a drain is short. If a
tick fails for good, the role stops, and `close` says why.
"""

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor

from minefleet.core.errors import OverloadedError
from minefleet_replay.engine.metrics import ReplayMetrics
from minefleet_replay.engine.replay import Replay
from minefleet_runtime.role_status import StatusTracker

logger = logging.getLogger(__name__)

TICK_S = 1.0
"""Also the power-loss window of `durability: process`."""

STORAGE_PROPERTIES = (
    "total-sst-files-size",
    "size-all-mem-tables",
    "num-running-compactions",
    "is-write-stopped",
    "background-errors",
)


class Maintenance:
    """The thread."""

    def __init__(
        self, replay: Replay, metrics: ReplayMetrics, status: StatusTracker, stopping: threading.Event
    ) -> None:
        self._replay = replay
        self._metrics = metrics
        self._status = status
        self._stopping = stopping
        self._pool = ThreadPoolExecutor(1, "replay-ticker")
        self._done: Future[None] | None = None
        self._put_off = ""
        """The work that was last put off, and why: reported once."""
        self._short = False

    def start(self) -> None:
        """Begins to tick."""
        self._done = self._pool.submit(self._run)
        self._done.add_done_callback(lambda _: self._stopping.set())

    def close(self) -> None:
        """Waits for the thread to end, and raises what it died of."""
        self._stopping.set()
        self._pool.shutdown()
        if self._done is not None:
            self._done.result()

    def _run(self) -> None:
        try:
            self._show()
            while not self._stopping.wait(TICK_S):
                self._tick()
                self._show()
        finally:
            self._replay.stop_waiting()

    def _tick(self) -> None:
        try:
            self._replay.tick()
        except OverloadedError as error:
            self._log_failure(str(error))
        else:
            self._put_off = ""
        self._report(self._replay.shortage())

    def _log_failure(self, why: str) -> None:
        if why != self._put_off:
            logger.warning("put off: %s", why)
        self._put_off = why

    def _report(self, shortage: str | None) -> None:
        if shortage is not None or self._short:
            self._status.set_waiting(shortage)
        self._short = shortage is not None

    def _show(self) -> None:
        stats = self._replay.stats()
        self._status.set_stats(stats)
        self._metrics.show(stats)
        for name in STORAGE_PROPERTIES:
            self._metrics.storage.labels(name).set(self._replay.rocksdb_property(name))
