"""Pauses the training when the policy has collapsed, until a later request to the learner is granted.

    publisher ── begin ─▶ a durable line of the journal ◀─ set, rollback ── loop
        └──────────────────── both wait ───────────────────────────┘

That line is the truth: a learner that starts while a pause lasts waits, too.
"""

import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from minefleet.core.errors import FencedError
from minefleet.monitoring.journal import append, read_whole_journal
from minefleet.monitoring.journaled_pauses import WAYS_ON, last_pause, pause_reason
from minefleet.monitoring.learner_requests_in_journal import LOOK_S, PAUSE, ROLLBACK, SET, newest_learner
from minefleet.rpc.retrier import StoppedError
from minefleet.runs.checkpoint_files import CheckpointState
from minefleet.v1 import status_service_pb2
from minefleet_learner.data.prefetcher import Prefetcher
from minefleet_runtime.role_status import StatusTracker

logger = logging.getLogger(__name__)


class Pause:
    """The pause of one learner, whose name is `learner`."""

    def __init__(self, directory: Path, learner: str, prefetcher: Prefetcher, status: StatusTracker) -> None:
        self._directory, self._learner = directory, learner
        self._prefetcher, self._status = prefetcher, status
        self._reason = ""

    def take_up(self) -> None:
        """Goes on with a pause that an earlier learner began."""
        self._reason = pause_reason(read_whole_journal(self._directory))
        if self._reason:
            logger.warning("still paused, the policy has collapsed: %s; %s", self._reason, WAYS_ON)

    def comes_after(self, state: CheckpointState) -> bool:
        """Whether the run has paused since this state, and has not stepped back."""
        last = last_pause(read_whole_journal(self._directory))
        return last is not None and last["event"] != ROLLBACK and last["iteration"] >= state.iteration

    def begin(self, reason: str, state: CheckpointState) -> None:
        """Pauses from here on. Raises an `OSError` if the journal cannot be written."""
        logger.warning("paused, the policy has collapsed: %s; %s", reason, WAYS_ON)
        request = uuid.uuid4().hex
        append(self._directory, PAUSE, asdict(state), id=request, learner=self._learner, reason=reason)
        self._reason = reason

    def wait(self, look: Callable[[], None] = lambda: None) -> None:
        """Waits while training is paused; `look` is called again and again.

        Raises:
            FencedError: If another learner has started.
            StoppedError: If it is to stop, or steps back: what is not published by then never is.
        """
        while self._reason:
            self._status.set_state(
                status_service_pb2.STATE_PAUSED, f"the policy has collapsed: {self._reason}; {WAYS_ON}"
            )
            look()
            lines = read_whole_journal(self._directory)
            if newest_learner(lines) != self._learner:
                raise FencedError("another learner has started while this one was paused")
            last = last_pause(lines)
            event = None if last is None else last["event"]
            if event == ROLLBACK or self._prefetcher.is_over:
                raise StoppedError(f"stopped while training was paused: {self._reason}")
            if event == SET:
                self._reason = ""
                logger.info("goes on after a pause: keys were set")
                self._status.set_state(status_service_pb2.STATE_RUNNING)
            else:
                time.sleep(LOOK_S)
