"""The way of each slot's stream: to one shard of replay, from its first fragment to its last.

    slot ──▶ stream ──▶ connection: permits and uploader of one shard

A stream is placed once, when its actor starts: the slots of a fleet, counted over its actors by their index, go to the
shards in turn. A slot that its shard refuses waits.

Each step is counted at the shard that its slot's stream goes to, so the sum over shards is the actor's.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from minefleet.core.fragment import Fragment
from minefleet.v1 import episode_pb2, fragment_pb2
from minefleet_actor.replay_io.permits import Chunk, RolloutPermits, StreamVerdict
from minefleet_actor.replay_io.uploader import FragmentUploader


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardConnection:
    """The background workers of one shard."""

    name: str
    """The shard's."""
    permits: RolloutPermits
    uploader: FragmentUploader
    coming: set[int] = field(default_factory=set)
    """Slots that may start a fragment, but have not yet sent the complete one before it."""

    def has_room(self) -> bool:
        """Whether another fragment may be started, as far as the uploader's queue goes."""
        return self.uploader.has_room(len(self.coming))

    @property
    def missing(self) -> str:
        """The reason for which a blocked slot waits: one of `metrics.REASONS`."""
        if not self.has_room():
            return "room"
        return "weights" if self.permits.needs_newer_weights else "grant"


def shard_numbers(actor_index: int, slots: int, shards: int) -> NDArray[np.intp]:
    """The shard that each slot's stream goes to."""
    return (actor_index * slots + np.arange(slots)) % shards


class ChunkForecast(NamedTuple):
    """A chunk that is being made."""

    deadline: float
    """Until when it should have been sent; infinite where that is not known."""
    longest_s: float
    """Longest duration, unless it is cut."""
    whole_fragments: int
    """That it has already."""


class StreamRouter:
    """The streams of an actor's slots. Not thread-safe: the loop's."""

    def __init__(
        self,
        actor: str,
        slots: int,
        shards: Sequence[ShardConnection],
        *,
        fragments_per_chunk: int,
        actor_index: int = 0,
    ) -> None:
        self._actor = actor
        self._shards = tuple(shards)
        self._fragments_per_chunk = fragments_per_chunk
        self._sequence, self._chunk, self._chunk_start = ([0] * slots for _ in range(3))
        self._oldest = [0] * slots
        """The version that began the chunk that each slot is making."""
        self.shard_of = shard_numbers(actor_index, slots, len(shards))
        """The shard of every slot."""

    def __iter__(self) -> Iterator[ShardConnection]:
        return iter(self._shards)

    def stream(self, slot: int) -> str:
        """The name of the slot's stream."""
        return f"{self._actor}-{slot}"

    def request(self, slot: int, *, after_another: bool = False) -> None:
        """Asks for the chunk of the slot's next fragment, or of the one after it."""
        self._shard(slot).permits.request(self._chunk_of(slot, after_another=after_another))

    def give_back(self, slot: int) -> None:
        """Lets others have the room of the slot's chunks that are not begun, until they are asked for again."""
        for after_another in (False, True):
            self._shard(slot).permits.give_back(self._chunk_of(slot, after_another=after_another))

    def has_room(self, slot: int) -> bool:
        """Whether a fragment of the slot may be queued although the next one goes on already."""
        return self._shard(slot).has_room()

    def may_start(self, slot: int, *, after_another: bool, closes_chunk: bool = False) -> bool:
        """Whether the slot may start its next fragment: its chunk is granted, and there is room to send it.

        Args:
            slot: The slot.
            after_another: Whether the fragment before it is complete, but not sent. Where the slot may start, room is
                kept for that one until it is.
            closes_chunk: Whether that one ends its chunk, however short it is.
        """
        shard, (stream, chunk) = self._shard(slot), self._chunk_of(slot, after_another=after_another)
        if closes_chunk and not self._is_last(slot):
            chunk += 1
            shard.permits.request((stream, chunk))
        may_start = shard.has_room() and shard.permits.is_granted((stream, chunk))
        if may_start and after_another:
            shard.coming.add(slot)
        return may_start

    def begin(self, slot: int, version: int, step_s: float, task: str = "") -> None:
        """The slot starts its next fragment, by this version; asks ahead for the chunk of the one after it."""
        if self._sequence[slot] == self._chunk_start[slot]:
            self._oldest[slot] = version
            self._shard(slot).permits.begin(self._chunk_of(slot, after_another=False), version, step_s, task)
        self.request(slot, after_another=True)

    def report_pace(self, slot: int, step_s: float, task: str = "") -> None:
        """The slot plays on; its steps take so long now."""
        self._shard(slot).permits.report_pace(self._chunk_of(slot, after_another=False), step_s, task)

    @property
    def forecasts(self) -> int:
        """Number of changes of deadlines."""
        return sum(shard.permits.forecasts for shard in self._shards)

    def forecast(self, slot: int) -> ChunkForecast:
        """The forecast for the chunk that the slot is making."""
        permits = self._shard(slot).permits
        whole = self._sequence[slot] - self._chunk_start[slot]
        return ChunkForecast(permits.deadline(self._oldest[slot]), permits.longest_chunk_s, whole)

    def time_left_s(self, slot: int, version: int, now: float) -> float:
        """Longest duration of a chunk that this version begins now."""
        return self._shard(slot).permits.deadline(version, at_most=True) - now

    def interval_s(self, slot: int) -> float:
        """Between two versions, as far as the slot's shard knows, seconds."""
        return self._shard(slot).permits.interval_s

    def verdict(self, slot: int) -> StreamVerdict:
        """Replay's latest verdict on the slot's stream."""
        return self._shard(slot).permits.verdict(self.stream(slot))

    def task(self, slot: int) -> str:
        """The task of the slot's next episode; empty where no grant has named one."""
        return self._shard(slot).permits.task(self.stream(slot))

    def missing(self, slot: int) -> str:
        """The reason for which a slot waits whose next fragment replay does not take yet."""
        return self._shard(slot).missing

    def count_blocked(self, blocked: NDArray[np.bool_]) -> Counter[str]:
        """The number of blocked slots, of [S] bool, for each reason."""
        counts = np.bincount(self.shard_of[blocked], minlength=len(self._shards)).tolist()
        lacking: Counter[str] = Counter()
        for shard, slots in zip(self._shards, counts, strict=True):
            if slots:
                lacking[shard.missing] += slots
        return lacking

    @property
    def queued(self) -> int:
        """Fragments that wait to be sent."""
        return sum(len(shard.uploader) for shard in self._shards)

    def send(self, slot: int, fragment: Fragment, *, task: str = "", closes_chunk: bool) -> None:
        """Queues the slot's next fragment. After a chunk's last one, its grant need not be kept."""
        closes_chunk = closes_chunk or self._is_last(slot)
        shard, chunk, sequence = self._shard(slot), self._chunk_of(slot, after_another=False), self._sequence[slot]
        shard.coming.discard(slot)
        header = fragment_pb2.FragmentHeader(
            name=fragment_pb2.FragmentName(stream=self.stream(slot), sequence=sequence),
            chunk=self._chunk[slot],
            chunk_start=self._chunk_start[slot],
            closes_chunk=closes_chunk,
            task=task,
        )
        shard.uploader.send(header, fragment)
        self._sequence[slot] += 1
        if closes_chunk:
            self._chunk[slot], self._chunk_start[slot] = self._chunk[slot] + 1, sequence + 1
            shard.permits.release(chunk)

    def send_episode(self, slot: int, episode: episode_pb2.EpisodeRecord) -> None:
        """Queues an episode record of the slot's stream. Any thread's."""
        self._shard(slot).uploader.report(episode)

    def notify(self) -> None:
        """Something changed that may turn refusals into grants."""
        for shard in self._shards:
            shard.permits.notify()

    def _shard(self, slot: int) -> ShardConnection:
        return self._shards[int(self.shard_of[slot])]

    def _chunk_of(self, slot: int, *, after_another: bool) -> Chunk:
        """The chunk of the slot's next fragment, or of the one after it."""
        return self.stream(slot), self._chunk[slot] + int(after_another and self._is_last(slot))

    def _is_last(self, slot: int) -> bool:
        """Whether the slot's next fragment is the last that its chunk may have."""
        return self._sequence[slot] + 1 - self._chunk_start[slot] >= self._fragments_per_chunk
