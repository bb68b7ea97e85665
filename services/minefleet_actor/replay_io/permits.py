"""Requests permits from replay: an actor makes a chunk only once it is granted.

    loop ── request ──▶ requests ── reserve ──▶ replay
     ▲                                            │
     └─────────── is_granted ◀── grants ◀─────────┘

The actor's loop adds requests and reads grants; this thread exchanges them with replay. It sleeps until a first
request, or for replay's hint after a refusal; a new request, new weights and `close` wake it. Requests are made ahead,
so the thread then waits a moment for more of them, unless the loop needs a grant. It renews grants of open chunks every
`renew_s`, which keeps a slow stream's grant alive, and gives back those of chunks that will not begin soon.

Each call reports what changed of the streams, and each answer forecasts when leases close: `deadline` returns it. While
a chunk is being made, a new forecast is fetched twice per lease.
"""

import math
import threading
import time
from collections.abc import Callable
from itertools import starmap
from typing import NamedTuple

from minefleet.rpc.durations import duration
from minefleet.rpc.replay_client import ReplayClient
from minefleet.rpc.replay_types import LeaseForecast
from minefleet.rpc.retrier import StoppedError
from minefleet.v1.replay_service_pb2 import StreamState

Chunk = tuple[str, int]
"""Stream and number of the chunk."""


class StreamVerdict(NamedTuple):
    """Replay's verdict on a stream."""

    too_slow: bool = False
    """Its chunks are refused since nothing in them could be used, or hardly anything was."""
    ahead: bool = False
    """It is to wait until others have had as many steps."""


MIN_FORECAST_INTERVAL_S = 0.05
LINGER_S = 0.02
"""Longest time that a request waits for others, to share a call."""


class RolloutPermits:
    """Requests and grants of one shard. Thread-safe."""

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
        self._on_granted = granted
        self._renew_s = renew_s
        self._max_staleness = max_staleness
        self._newest_version = 0
        self._outdated: int | None = None  # The version that replay would grant more to, were it newer.
        self._clock = clock
        self._changed = threading.Condition()
        self._states: dict[str, StreamState] = {}
        self._open: set[str] = set()
        """The streams that have begun a chunk."""
        self._unreported: set[str] = set()
        self._forecast: tuple[LeaseForecast, float] | None = None
        self.longest_chunk_s = math.inf
        """Longest duration of a chunk before it must be cut."""
        self.forecasts = 0
        """Number of changes of `deadline` and `longest_chunk_s`."""
        self._verdicts: dict[str, StreamVerdict] = {}
        self._tasks: dict[str, str] = {}
        """Stream -> the task that its latest grant names."""
        self._requests: dict[Chunk, None] = {}
        self._grants: dict[Chunk, float] = {}
        self._returned: set[Chunk] = set()
        self._forecast_due = -math.inf
        self._is_notified = False
        self._urgent = False
        self._missed = False
        """Whether the loop has met a chunk that is not granted, and was not woken since."""
        self._closed = False

    def request(self, chunk: Chunk) -> None:
        """Asks for a chunk; idempotent."""
        with self._changed:
            if chunk not in self._grants and chunk not in self._requests:
                self._requests[chunk] = None
                self._returned.discard(chunk)
                self._wake(urgent=False)

    def give_back(self, chunk: Chunk) -> None:
        """Lets others have the room of a chunk that will not begin soon, unless it has. `request` undoes it."""
        with self._changed:
            if not self._is_begun(chunk) and (chunk in self._grants or chunk in self._requests):
                self._grants.pop(chunk, None)
                self._requests.pop(chunk, None)
                self._returned.add(chunk)
                self._wake(urgent=False)

    def is_granted(self, chunk: Chunk) -> bool:
        """Whether the chunk is granted. Where not, `granted` is called when something is."""
        with self._changed:
            granted = chunk in self._grants
            if not granted:
                self._missed = True
                if self._is_notified and not self._urgent:
                    self._wake()
        return granted

    def begin(self, chunk: Chunk, oldest_version: int, step_s: float, task: str = "") -> None:
        """A chunk that is granted is being made from now on, by this version first."""
        with self._changed:
            self._open.add(chunk[0])
            self._record_state(chunk, oldest_version, step_s, task)

    def report_pace(self, chunk: Chunk, step_s: float, task: str = "") -> None:
        """A stream plays on; its steps take so long now."""
        with self._changed:
            oldest_version = self._states[chunk[0]].oldest_version if chunk[0] in self._open else None
            self._record_state(chunk, oldest_version, step_s, task)

    def deadline(self, oldest_version: int, *, at_most: bool = False) -> float:
        """Until when replay should have what such a version has begun, by this object's clock; infinite where unknown.

        Args:
            oldest_version: The oldest that has acted in the chunk.
            at_most: Whether it is shorter than may be cut: then its lease waits a while longer.
        """
        if self._forecast is None:
            return math.inf
        closing, at = self._forecast
        leases = oldest_version + self._max_staleness - closing.use_version
        if leases < 0:
            return -math.inf
        return at + closing.closes_in_s[min(leases, len(closing.closes_in_s) - 1)] + at_most * closing.waits_s

    def verdict(self, stream: str) -> StreamVerdict:
        """Replay's latest verdict on a stream."""
        return self._verdicts.get(stream, StreamVerdict())

    def task(self, stream: str) -> str:
        """The task of the episode that a stream begins next; empty where no grant has named one."""
        return self._tasks.get(stream, "")

    @property
    def interval_s(self) -> float:
        """Between two versions, as far as is known, seconds."""
        return 0.0 if self._forecast is None else self._forecast[0].interval_s

    @property
    def needs_newer_weights(self) -> bool:
        """Whether replay would grant chunks to newer weights, and does not grant them to those in use."""
        version = self._version()
        return version == self._outdated or self._newest_version - version > self._max_staleness

    def release(self, chunk: Chunk) -> None:
        """The chunk is complete: its grant need not be kept."""
        with self._changed:
            self._grants.pop(chunk, None)
            self._requests.pop(chunk, None)
            if self._is_begun(chunk):
                self._open.remove(chunk[0])
                self._unreported.discard(chunk[0])

    def notify(self) -> None:
        """Something changed that may turn a refusal into a grant: ask at once."""
        with self._changed:
            self._wake()

    def reserve(self) -> float | None:
        """Calls replay once with all that is due. Returns when to call again, s; None at a request."""
        with self._changed:
            self._is_notified = self._urgent = False
            renewed_s = self._clock() - self._renew_s
            due = [chunk for chunk, since in self._grants.items() if since <= renewed_s or self._is_unreported(chunk)]
            requested = [*self._requests, *due]
            streams = [
                self._states[stream] for stream in sorted(self._unreported | {stream for stream, _ in due} & self._open)
            ]
            returned, self._returned = sorted(self._returned), set()
            is_forecast_due = bool(self._open) and self._clock() >= self._forecast_due
        if not requested and not streams and not returned and not is_forecast_due:
            return None
        version = self._version()
        answer = self._replay.reserve(version, requested, streams, returned)
        with self._changed:
            self._unreported -= {state.stream for state in streams if state is self._states[state.stream]}
            self._set_forecast(answer.closing, answer.longest_chunk_s)
            self._outdated = version if answer.wants_newer_weights else None
            self._newest_version = answer.newest_version
            for chunk, granted in zip(requested, answer.granted, strict=True):
                self._record_answer(chunk, granted)
            named = zip(requested, answer.tasks, strict=False)  # A replay of an older version names none.
            self._tasks.update({stream: task for (stream, _), task in named if task})
            verdicts = starmap(StreamVerdict, zip(answer.too_slow, answer.ahead, strict=True))
            self._verdicts.update(zip((stream for stream, _ in requested), verdicts, strict=True))
            is_granted_now = self._missed and any(answer.granted)
            self._missed = self._missed and not is_granted_now
        if is_granted_now:
            self._on_granted()
        return None if all(answer.granted) else answer.retry_after_s

    def run(self) -> None:
        """Asks until closed."""
        try:
            while not self._closed:
                retry_after_s = self.reserve()
                with self._changed:
                    wait_s = min(retry_after_s or self._renew_s, self._forecast_due_in_s())
                    if self._changed.wait_for(lambda: self._is_notified or self._closed, wait_s):
                        self._changed.wait_for(lambda: self._urgent or self._closed, LINGER_S)
        except StoppedError:
            return

    def close(self) -> None:
        """Ends `run`."""
        with self._changed:
            self._closed = True
            self._wake()

    def _is_begun(self, chunk: Chunk) -> bool:
        """Whether the chunk is the one that its stream is making."""
        stream, number = chunk
        return stream in self._open and self._states[stream].chunk == number

    def _is_unreported(self, chunk: Chunk) -> bool:
        """Whether replay does not know yet how the chunk is being made."""
        return chunk[0] in self._unreported and self._is_begun(chunk)

    def _record_state(self, chunk: Chunk, oldest_version: int | None, step_s: float, task: str) -> None:
        stream, number = chunk
        self._states[stream] = StreamState(
            stream=stream, chunk=number, oldest_version=oldest_version, step_time=duration(step_s), task=task
        )
        self._unreported.add(stream)
        self._wake(urgent=False)

    def _set_forecast(self, closing: LeaseForecast | None, longest_chunk_s: float) -> None:
        self.forecasts += closing is None and longest_chunk_s != self.longest_chunk_s
        self.longest_chunk_s = longest_chunk_s
        if closing is not None:
            self._forecast, self._max_staleness = (closing, self._clock()), len(closing.closes_in_s) - 1
            self._forecast_due = self._clock() + max(closing.interval_s / 2, MIN_FORECAST_INTERVAL_S)
            self.forecasts += 1

    def _forecast_due_in_s(self) -> float:
        """When to ask for a new forecast, seconds."""
        return max(self._forecast_due - self._clock(), 0.0) if self._open and self._forecast else math.inf

    def _record_answer(self, chunk: Chunk, granted: bool) -> None:
        """Files one answer. A renewal that is refused stays granted: its steps are being made."""
        if granted and (chunk in self._requests or chunk in self._grants):
            self._requests.pop(chunk, None)
            self._grants[chunk] = self._clock()

    def _wake(self, *, urgent: bool = True) -> None:
        if urgent or not self._is_notified:
            self._changed.notify_all()
        self._is_notified, self._urgent = True, self._urgent or urgent
