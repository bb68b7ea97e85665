"""Asks replay for permission to make chunks.

    streams ── wish ──▶ wishes ── ask ──▶ replay
       ▲                                    │
       └────────── may_make ◀── grants ◀────┘

The actor's loop fills `wishes` and empties `grants`; this thread moves one to the other. It waits for a first wish, or
for replay's hint when something was refused; a new wish, new weights and `close` wake it. Wishes are made ahead, so it
then waits a moment for others, unless the loop waits for a grant. Granted chunks that are not done are asked for again
every `renew_s`, which keeps a slow stream's grant alive.
"""

import threading
import time
from collections.abc import Callable

from minefleet.replay import Position, ReplayClient
from minefleet.rpc import StoppedError

Chunk = tuple[str, int]
"""Stream and number of the chunk."""

LINGER_S = 0.02
"""Longest time that a wish waits for others to travel with."""


class Grants:
    """Wishes, and what was granted."""

    def __init__(
        self,
        replay: ReplayClient,
        *,
        version: Callable[[], int],
        granted: Callable[[], None],
        renew_s: float,
        max_staleness: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._replay = replay
        self._version = version
        self._granted_hook = granted
        self._renew_s = renew_s
        self._max_staleness = max_staleness
        self._newest_version = 0
        self._outdated: int | None = None  # The version that replay would grant more to, were it newer.
        self._clock = clock
        self._changed = threading.Condition()
        self._wishes: dict[Chunk, None] = {}
        self._grants: dict[Chunk, float] = {}
        self._news = False
        self._urgent = False
        self._missed = False
        """Whether the loop was told of a chunk that it is not granted, and nothing since."""
        self._closed = False

    def bind(self, run_id: str) -> None:
        """Names the run that the grants are asked for."""
        self._replay.position = Position(run_id=run_id)

    def wish(self, chunk: Chunk) -> None:
        """Asks for a chunk; idempotent."""
        with self._changed:
            if chunk not in self._grants and chunk not in self._wishes:
                self._wishes[chunk] = None
                self._wake(urgent=False)

    def may_make(self, chunk: Chunk) -> bool:
        """Whether the chunk is granted. Where not, `granted` is called when something is."""
        with self._changed:
            granted = chunk in self._grants
            if not granted:
                self._missed = True
                if self._news and not self._urgent:
                    self._wake()
        return granted

    @property
    def is_behind(self) -> bool:
        """Whether replay would grant chunks to newer weights, and does not grant them to those in use."""
        version = self._version()
        return version == self._outdated or self._newest_version - version > self._max_staleness

    def done(self, chunk: Chunk) -> None:
        """The chunk is complete: its grant need not be kept."""
        with self._changed:
            self._grants.pop(chunk, None)
            self._wishes.pop(chunk, None)

    def news(self) -> None:
        """Something changed that may turn a refusal into a grant: ask at once."""
        with self._changed:
            self._wake()

    def ask(self) -> float | None:
        """Asks once for all wishes and for due renewals. Returns when to ask again, in seconds; None when a wish."""
        with self._changed:
            self._news = self._urgent = False
            due = [chunk for chunk, since in self._grants.items() if self._clock() - since >= self._renew_s]
            asked = [*self._wishes, *due]
        if not asked:
            return None
        version = self._version()
        answer = self._replay.reserve(version, asked)
        with self._changed:
            self._outdated = version if answer.wants_newer_weights else None
            self._newest_version = answer.newest_version
            for chunk, granted in zip(asked, answer.granted, strict=True):
                self._take(chunk, granted)
            told = self._missed and any(answer.granted)
            self._missed = self._missed and not told
        if told:
            self._granted_hook()
        return None if all(answer.granted) else answer.retry_after_s

    def run(self) -> None:
        """Asks until closed."""
        try:
            while not self._closed:
                retry_after_s = self.ask()
                with self._changed:
                    if self._changed.wait_for(lambda: self._news or self._closed, retry_after_s or self._renew_s):
                        self._changed.wait_for(lambda: self._urgent or self._closed, LINGER_S)
        except StoppedError:
            return

    def close(self) -> None:
        """Ends `run`."""
        with self._changed:
            self._closed = True
            self._wake()

    def _take(self, chunk: Chunk, granted: bool) -> None:
        """Files one answer. A renewal that is refused stays granted: its steps are being made."""
        if granted and (chunk in self._wishes or chunk in self._grants):
            self._wishes.pop(chunk, None)
            self._grants[chunk] = self._clock()

    def _wake(self, *, urgent: bool = True) -> None:
        if urgent or not self._news:
            self._changed.notify_all()
        self._news, self._urgent = True, self._urgent or urgent
