"""The way of each slot's stream: to one shard of replay, from its first fragment to its last.

    slot, generation ──▶ stream ──▶ lane: Grants and Shipper of one shard

A slot's first stream has generation 0. Which shard a stream goes to is a function of slot and generation, and an
actor's slots spread over all shards. A slot that its shard refuses for `PATIENCE_S`, while another shard has chunks to
spare, ends its stream and goes on as one of a later generation, which lies there. It does so only where it waits to
begin a chunk, so no chunk is cut, and nothing is recorded that could be lost or named twice.

Each step is counted at the shard that its slot's stream goes to, so the sum over shards is the actor's.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from minefleet.fragment import Fragment
from minefleet.v1 import episode_pb2
from minefleet_actor.grants import Chunk, Grants
from minefleet_actor.shipping import Parcel, Shipper

PATIENCE_S = 1.0
"""A slot that is held for longer may go to another shard."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """What works for one shard in the background."""

    name: str
    """The shard's."""
    grants: Grants
    shipper: Shipper
    coming: set[int] = field(default_factory=set)
    """Slots that may start a fragment, but have not yet sent the complete one before it."""

    def has_room(self) -> bool:
        """Whether another fragment may be started, as far as the shipper's queue goes."""
        return self.shipper.has_room(len(self.coming))

    @property
    def lack(self) -> str:
        """What a slot that is held waits for: one of `metrics.REASONS`."""
        if not self.has_room():
            return "room"
        return "weights" if self.grants.is_behind else "grant"


def stream_name(actor: str, slot: int, generation: int) -> str:
    """The name of a slot's stream."""
    return f"{actor}-{slot}.{generation}" if generation else f"{actor}-{slot}"


def lane_number(actor: str, slot: int, generation: int, lanes: int) -> int:
    """The shard that a stream goes to."""
    return (crc32(actor.encode()) + slot + generation) % lanes


class Lanes:
    """The streams of an actor's slots. Not thread-safe: the loop's."""

    def __init__(self, actor: str, slots: int, lanes: Sequence[Lane], *, fragments_per_chunk: int) -> None:
        self._actor = actor
        self._lanes = tuple(lanes)
        self._fragments_per_chunk = fragments_per_chunk
        self._generation = [0] * slots
        numbers = [lane_number(actor, slot, 0, len(lanes)) for slot in range(slots)]
        self.numbers: NDArray[np.intp] = np.array(numbers, np.intp)
        """The lane of every slot."""

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes)

    def __len__(self) -> int:
        return len(self._lanes)

    def stream(self, slot: int) -> str:
        """The name of the slot's stream."""
        return stream_name(self._actor, slot, self._generation[slot])

    def wish(self, slot: int, sequence: int) -> None:
        """Asks for the chunk of the slot's fragment with this number."""
        self._lane(slot).grants.wish(self._chunk(slot, sequence))

    def may_start(self, slot: int, sequence: int, *, after_another: bool) -> bool:
        """Whether the slot may start this fragment: its chunk is granted, and there is room to send it.

        Args:
            slot: The slot.
            sequence: The number of the fragment.
            after_another: Whether the fragment before it is complete, but not sent. Where the slot may start, room is
                kept for that one until it is.
        """
        lane = self._lane(slot)
        may_start = lane.has_room() and lane.grants.may_make(self._chunk(slot, sequence))
        if may_start and after_another:
            lane.coming.add(slot)
        return may_start

    def lack(self, slot: int) -> str:
        """What a slot that is held waits for: one of `metrics.REASONS`."""
        return self._lane(slot).lack

    @property
    def queued(self) -> int:
        """Fragments that wait to be sent."""
        return sum(len(lane.shipper) for lane in self._lanes)

    def send(self, slot: int, sequence: int, fragment: Fragment, *, closes_stream: bool) -> None:
        """Queues a fragment. After a chunk's last one, its grant need not be kept."""
        parcel = Parcel(stream=self.stream(slot), sequence=sequence, fragment=fragment, closes_stream=closes_stream)
        lane = self._lane(slot)
        lane.coming.discard(slot)
        lane.shipper.send(parcel)
        if (sequence + 1) % self._fragments_per_chunk == 0:
            lane.grants.done(self._chunk(slot, sequence))

    def report(self, slot: int, episode: episode_pb2.EpisodeRecord) -> None:
        """Queues an episode record of the slot's stream."""
        self._lane(slot).shipper.report(episode)

    def show(self, video: episode_pb2.Video, told: Callable[[bool], None]) -> None:
        """Queues a video, for the same shard each time. Any thread's."""
        self._lanes[crc32(video.stream.encode()) % len(self._lanes)].shipper.show(video, told)

    def news(self) -> None:
        """Something changed that may turn refusals into grants."""
        for lane in self._lanes:
            lane.grants.news()

    def look_around(self) -> bool:
        """Whether some shard has chunks to spare, as far as is known; lets all be asked."""
        for lane in self._lanes:
            lane.grants.poll()
        return any(lane.grants.has_spare() for lane in self._lanes)

    def move(self, slot: int, sequence: int) -> bool:
        """Ends the stream of a slot that waits to begin a chunk, if another shard has room; says whether it did.

        Its next fragment is number 0 of the new stream.
        """
        own = int(self.numbers[slot])
        target = self._target(own) if sequence % self._fragments_per_chunk == 0 else None
        if target is None or not self._lanes[own].grants.withdraw(self._chunk(slot, sequence)):
            return False
        self._lanes[target].grants.take_spare()
        self._generation[slot] += (target - own) % len(self._lanes)
        self.numbers[slot] = target
        return True

    def _target(self, own: int) -> int | None:
        """The lane with chunks to spare and the fewest slots, if it has no more than `own`.

        Without that bound all slots would run to and fro between two shards.
        """
        slots = np.bincount(self.numbers, minlength=len(self._lanes))
        able = [
            number
            for number, lane in enumerate(self._lanes)
            if number != own and slots[number] <= slots[own] and lane.grants.has_spare()
        ]
        return min(able, key=lambda number: int(slots[number]), default=None)

    def _lane(self, slot: int) -> Lane:
        return self._lanes[int(self.numbers[slot])]

    def _chunk(self, slot: int, sequence: int) -> Chunk:
        return self.stream(slot), sequence // self._fragments_per_chunk
