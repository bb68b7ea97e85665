"""Sends finished fragments and episode records to replay.

    loop ── fragment, episodes ──▶ queue ── encode, append ──▶ replay

The loop fills the queue and stops starting fragments while it holds `capacity` of them (`has_room`), those included
that are complete and come with the next decision, so the queue is bounded by that plus one fragment per slot. This
thread empties it, with one call for all that is queued up to `CALL_BYTES`, while another packs what the next call shall
carry. It waits for something to send and then a moment for more, since a call costs as much as the fragments that it
carries, unless the queue is half full, or stood behind a full call and was packed meanwhile. While replay does not
answer it repeats the same names until it does.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from minefleet.core.fragment import Fragment
from minefleet.rpc.codec import encode
from minefleet.rpc.replay_client import ReplayClient
from minefleet.rpc.replay_types import Packed
from minefleet.rpc.retrier import StoppedError
from minefleet.v1 import episode_pb2, fragment_pb2, replay_service_pb2

CALL_BYTES = 4 * 2**20
"""Packed bytes beyond which a call takes no further fragment."""

LINGER_S = 0.02
"""Longest time that a fragment waits for others to travel with."""

FLUSH_S = 1.0
"""Longest time that an episode record waits for a fragment to travel with."""


class FragmentUploader:
    """The queue and the thread that empties it."""

    def __init__(
        self,
        replay: ReplayClient,
        *,
        capacity: int,
        schema_fingerprint: str,
        compression: str,
        state_dtype: str,
        progress: Callable[[], replay_service_pb2.ActorProgress],
        sent: Callable[[], None],
    ) -> None:
        self._replay = replay
        self._capacity = capacity
        self._schema_fingerprint = schema_fingerprint
        self._compression = compression
        self._state_dtype = state_dtype
        self._progress = progress
        self._sent = sent
        self._changed = threading.Condition()
        self._queue: deque[tuple[fragment_pb2.FragmentHeader, Fragment]] = deque()
        self._episodes: deque[episode_pb2.EpisodeRecord] = deque()
        self._refused = False
        """Whether the loop has met a full queue, and was not woken since."""
        self._closed = False

    def __len__(self) -> int:
        return len(self._queue)

    def has_room(self, coming: int = 0) -> bool:
        """Whether another fragment may be started. Where not, `sent` is called when one may.

        Args:
            coming: Fragments that will be queued before it.
        """
        with self._changed:
            has_room = len(self._queue) + coming < self._capacity
            self._refused = self._refused or not has_room
        return has_room

    def send(self, header: fragment_pb2.FragmentHeader, fragment: Fragment) -> None:
        """Queues a fragment, whose header has its name, its chunk and its task."""
        header.run_id, header.schema_fingerprint = self._replay.position.run_id, self._schema_fingerprint
        with self._changed:
            self._queue.append((header, fragment))
            if len(self._queue) == 1 or self._is_urgent():
                self._changed.notify_all()

    def report(self, episode: episode_pb2.EpisodeRecord) -> None:
        """Queues an episode record. Any thread's."""
        self._episodes.append(episode)

    def run(self) -> None:
        """Sends until closed and empty."""
        try:
            while self._wait():
                self.flush(LINGER_S)
            self._append([])
        except StoppedError:
            return

    def flush(self, linger_s: float = 0.0) -> None:
        """Sends all that is queued, oldest first, and this actor's progress.

        While a full call is sent, or half a queue waits, it packs the next one.

        Args:
            linger_s: How long fragments wait for others to travel with.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="packer") as packer:
            packed = self._pack(self._queued(linger_s))
            while packed:
                rest = self._queued()[len(packed) :]
                is_full = sum(header.payload_bytes for header, _ in packed) >= CALL_BYTES
                ahead = packer.submit(self._pack, rest) if rest and (is_full or self._are_many(len(rest))) else None
                self._append(packed)
                self._forget(len(packed))
                packed = ahead.result() if ahead is not None else self._pack(self._queued(linger_s))
        if self._episodes:
            self._append([])

    def close(self) -> None:
        """Ends `run` once all is sent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wait(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed, FLUSH_S)
            return not self._closed or bool(self._queue or self._episodes)

    def _is_urgent(self) -> bool:
        """Whether to send at once: to end, or before the loop runs out of room."""
        return self._closed or self._are_many(len(self._queue))

    def _are_many(self, queued_fragments: int) -> bool:
        return 2 * queued_fragments >= self._capacity

    def _forget(self, count: int) -> None:
        """Drops the oldest fragments, which replay has; wakes the loop if it waits for room."""
        with self._changed:
            for _ in range(count):
                self._queue.popleft()
            is_awaited, self._refused = self._refused, False
        if is_awaited:
            self._sent()

    def _append(self, packed: list[Packed]) -> None:
        episodes = [self._episodes.popleft() for _ in range(len(self._episodes))]
        self._replay.append(packed, episodes=episodes, progress=self._progress())

    def _queued(self, linger_s: float = 0.0) -> list[tuple[fragment_pb2.FragmentHeader, Fragment]]:
        """The queue, once it was not empty for so long or is urgent."""
        with self._changed:
            if self._queue and linger_s:
                self._changed.wait_for(self._is_urgent, linger_s)
            return list(self._queue)

    def _pack(self, queued: list[tuple[fragment_pb2.FragmentHeader, Fragment]]) -> list[Packed]:
        """Packs as many as one call shall carry."""
        packed, packed_bytes = list[Packed](), 0
        for named, fragment in queued:
            if packed_bytes >= CALL_BYTES:
                break
            header, payload = encode(named, fragment, compression=self._compression, state_dtype=self._state_dtype)
            packed.append((header, payload))
            packed_bytes += header.payload_bytes
        return packed
