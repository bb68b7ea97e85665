"""Asks replay for permission to make chunks.

    streams ── wish ──▶ wishes ── ask ──▶ replay
       ▲                                    │
       └────────── may_make ◀── grants ◀────┘

The actor's loop fills `wishes` and empties `grants`; this thread moves one to the other. It waits for a first wish, or
for replay's hint when something was refused; a new wish, new weights and `close` wake it. Wishes are made ahead, so it
then waits a moment for others, unless the loop waits for a grant. Granted chunks that are not done are asked for again
every `renew_s`, which keeps a slow stream's grant alive.

With each question goes what is new of the streams, and with each answer comes until when leases take what is made:
`deadline` tells it. While a chunk is being made, that is asked for twice per lease.
"""

import math
import threading
import time
from collections.abc import Callable
from itertools import starmap
from typing import NamedTuple

from minefleet.rpc.channel import StoppedError
from minefleet.rpc.replay_client import LeaseForecast, Position, ReplayClient, duration
from minefleet.v1.replay_service_pb2 import StreamState

Chunk = tuple[str, int]
"""Stream and number of the chunk."""


class StreamVerdict(NamedTuple):
    """Replay's verdict on a stream."""

    too_slow: bool = False
    """Its chunks are refused since nothing in them could be used."""
    ahead: bool = False
    """It is to wait until others have had as many steps."""


SHORTEST_NEWS_S = 0.05
LINGER_S = 0.02
"""Longest time that a wish waits for others to travel with."""


class RolloutPermits:
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
        self._states: dict[str, StreamState] = {}
        self._open: set[str] = set()
        """The streams that have begun a chunk."""
        self._unsaid: set[str] = set()
        self._closing: tuple[LeaseForecast, float] | None = None
        self.longest_chunk_s = math.inf
        """Longest duration of a chunk before it must be cut."""
        self.forecasts = 0
        """Number of changes of `deadline` and `longest_chunk_s`."""
        self._verdicts: dict[str, StreamVerdict] = {}
        self._wishes: dict[Chunk, None] = {}
        self._grants: dict[Chunk, float] = {}
        self._news_due = -math.inf
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

    def begin(self, chunk: Chunk, oldest_version: int, step_s: float, task: str = "") -> None:
        """A chunk that is granted is being made from now on, by this version first."""
        with self._changed:
            self._open.add(chunk[0])
            self._tell(chunk, oldest_version, step_s, task)

    def play(self, chunk: Chunk, step_s: float, task: str = "") -> None:
        """A stream plays on; its steps take so long now."""
        with self._changed:
            oldest_version = self._states[chunk[0]].oldest_version if chunk[0] in self._open else None
            self._tell(chunk, oldest_version, step_s, task)

    def deadline(self, oldest_version: int, *, at_most: bool = False) -> float:
        """Until when replay should have what such a version has begun, by this object's clock; infinite where unknown.

        Args:
            oldest_version: The oldest that has acted in the chunk.
            at_most: Whether it is shorter than may be cut: then its lease waits a while longer.
        """
        if self._closing is None:
            return math.inf
        closing, at = self._closing
        leases = oldest_version + self._max_staleness - closing.use_version
        if leases < 0:
            return -math.inf
        return at + closing.closes_in_s[min(leases, len(closing.closes_in_s) - 1)] + at_most * closing.waits_s

    def verdict(self, stream: str) -> StreamVerdict:
        """Replay's latest verdict on a stream."""
        return self._verdicts.get(stream, StreamVerdict())

    @property
    def interval_s(self) -> float:
        """Between two versions, as far as is known, seconds."""
        return 0.0 if self._closing is None else self._closing[0].interval_s

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
            stream, number = chunk
            if stream in self._open and self._states[stream].chunk == number:
                self._open.remove(stream)
                self._unsaid.discard(stream)

    def news(self) -> None:
        """Something changed that may turn a refusal into a grant: ask at once."""
        with self._changed:
            self._wake()

    def ask(self) -> float | None:
        """Asks once for all wishes and for due renewals. Returns when to ask again, in seconds; None when a wish."""
        with self._changed:
            self._news = self._urgent = False
            renewed_s = self._clock() - self._renew_s
            due = [chunk for chunk, since in self._grants.items() if since <= renewed_s or self._is_news(chunk)]
            asked = [*self._wishes, *due]
            streams = [
                self._states[stream] for stream in sorted(self._unsaid | {stream for stream, _ in due} & self._open)
            ]
            is_news_due = bool(self._open) and self._clock() >= self._news_due
        if not asked and not streams and not is_news_due:
            return None
        version = self._version()
        answer = self._replay.reserve(version, asked, streams)
        with self._changed:
            self._unsaid -= {state.stream for state in streams if state is self._states[state.stream]}
            self._learn(answer.closing, answer.longest_chunk_s)
            self._outdated = version if answer.wants_newer_weights else None
            self._newest_version = answer.newest_version
            for chunk, granted in zip(asked, answer.granted, strict=True):
                self._take(chunk, granted)
            verdicts = starmap(StreamVerdict, zip(answer.too_slow, answer.ahead, strict=True))
            self._verdicts.update(zip((stream for stream, _ in asked), verdicts, strict=True))
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
                    wait_s = min(retry_after_s or self._renew_s, self._next_news_s())
                    if self._changed.wait_for(lambda: self._news or self._closed, wait_s):
                        self._changed.wait_for(lambda: self._urgent or self._closed, LINGER_S)
        except StoppedError:
            return

    def close(self) -> None:
        """Ends `run`."""
        with self._changed:
            self._closed = True
            self._wake()

    def _is_news(self, chunk: Chunk) -> bool:
        """Whether replay does not know yet how the chunk is being made."""
        stream, number = chunk
        return stream in self._unsaid & self._open and self._states[stream].chunk == number

    def _tell(self, chunk: Chunk, oldest_version: int | None, step_s: float, task: str) -> None:
        stream, number = chunk
        self._states[stream] = StreamState(
            stream=stream, chunk=number, oldest_version=oldest_version, step_time=duration(step_s), task=task
        )
        self._unsaid.add(stream)
        self._wake(urgent=False)

    def _learn(self, closing: LeaseForecast | None, longest_chunk_s: float) -> None:
        self.forecasts += closing is None and longest_chunk_s != self.longest_chunk_s
        self.longest_chunk_s = longest_chunk_s
        if closing is not None:
            self._closing = closing, self._clock()
            self._news_due = self._clock() + max(closing.interval_s / 2, SHORTEST_NEWS_S)
            self.forecasts += 1

    def _next_news_s(self) -> float:
        """When to ask for a new forecast, seconds."""
        return max(self._news_due - self._clock(), 0.0) if self._open and self._closing else math.inf

    def _take(self, chunk: Chunk, granted: bool) -> None:
        """Files one answer. A renewal that is refused stays granted: its steps are being made."""
        if granted and (chunk in self._wishes or chunk in self._grants):
            self._wishes.pop(chunk, None)
            self._grants[chunk] = self._clock()

    def _wake(self, *, urgent: bool = True) -> None:
        if urgent or not self._news:
            self._changed.notify_all()
        self._news, self._urgent = True, self._urgent or urgent
