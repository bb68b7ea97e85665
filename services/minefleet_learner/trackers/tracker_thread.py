"""Runs a tracker in a thread of its own, so that it can neither stop nor delay the training.

    publisher ── put ──▶ queue ──▶ thread ──▶ tracker

The publisher fills the queue and never waits: it drops an entry that the queue has no room for. The thread empties it
and waits for the tracker. `end` lets it finish, and `join` waits for that, up to a time; then the thread is left
behind, and dies with the process.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable

from minefleet_env.errors import in_one_line
from minefleet_learner.trackers.tracker import TrackedRun, Tracker

logger = logging.getLogger(__name__)

Entry = Callable[[Tracker], None]

MAX_ENTRIES = 1000
"""Entries that wait for a tracker: a few megabytes of rows."""
MAX_CALL_S = 60.0
"""Seconds after which a tracker that has not returned from a call is reported."""


class TrackerThread:
    """One tracker with its queue: `put` any number of entries, then `end` and `join`."""

    def __init__(self, name: str, make: Callable[[], Tracker], run: TrackedRun) -> None:
        """Starts the thread, which makes the tracker and has it take the run up."""
        self._name = name
        self._queue: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._entries = self._delivered = 0
        self._call_began: float | None = None
        self._is_reported = False
        self._thread = threading.Thread(target=self._work, args=(make, run), name=f"tracker {name}", daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> None:
        """Queues a call of the tracker; counts it as lost if the tracker is off or too far behind."""
        self._entries += 1
        is_full = self._queue.qsize() >= MAX_ENTRIES
        if self._hangs():
            self._report(f"has not returned from a call for {MAX_CALL_S:g} s")
        elif is_full:
            self._report(f"is {MAX_ENTRIES} rows behind")
        if self._thread.is_alive() and not is_full:
            self._queue.put(entry)

    def end(self) -> None:
        """Asks the tracker to deliver what is queued and to close."""
        self._queue.put(None)

    def join(self, timeout_s: float) -> None:
        """Waits for the tracker's end, so long at most and not if it hangs; logs how much it has not delivered."""
        self._thread.join(0.0 if self._hangs() else timeout_s)
        if self._thread.is_alive():
            logger.warning("tracker %s did not end in time and is left behind", self._name)
        if lost := self._entries - self._delivered:
            logger.warning(
                "tracker %s was not given %d of %d rows and videos; metrics.jsonl has every row",
                self._name,
                lost,
                self._entries,
            )

    def _work(self, make: Callable[[], Tracker], run: TrackedRun) -> None:
        made: list[Tracker] = []

        def start() -> None:
            made.append(make())
            made[0].start(run)

        if not self._call(start, "did not start and stays off"):
            return
        (tracker,) = made
        while (entry := self._queue.get()) is not None:
            self._delivered += self._call(lambda: entry(tracker), "failed")
        self._call(tracker.close, "failed to close")

    def _call(self, call: Callable[[], None], failure: str) -> bool:
        """Returns whether the call has succeeded."""
        self._call_began = time.monotonic()
        try:
            call()
        except BaseException as error:  # noqa: BLE001  # Trackers may raise anything, SystemExit too.
            self._report(f"{failure}: {in_one_line(error)}")
            return False
        finally:
            self._call_began = None
        return True

    def _hangs(self) -> bool:
        began = self._call_began
        return began is not None and time.monotonic() - began > MAX_CALL_S

    def _report(self, trouble: str) -> None:
        """Logs the first trouble; others follow from it more often than not."""
        if not self._is_reported:
            self._is_reported = True
            logger.warning("tracker %s %s; training goes on", self._name, trouble)
