"""The way of each slot's stream: to one shard of replay, from its first fragment to its last.

    slot ──▶ stream ──▶ lane: Grants and Shipper of one shard

A stream is placed once, when its actor starts: the slots of a fleet, counted over its actors by their index, go to the
shards in turn. A slot that its shard refuses waits.

Each step is counted at the shard that its slot's stream goes to, so the sum over shards is the actor's.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from minefleet.fragment import Fragment
from minefleet.v1 import episode_pb2
from minefleet_actor.grants import Chunk, Grants
from minefleet_actor.shipping import Parcel, Shipper


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


def lane_numbers(actor_index: int, slots: int, lanes: int) -> NDArray[np.intp]:
    """The shard that each slot's stream goes to."""
    return (actor_index * slots + np.arange(slots)) % lanes


class Lanes:
    """The streams of an actor's slots. Not thread-safe: the loop's."""

    def __init__(
        self, actor: str, slots: int, lanes: Sequence[Lane], *, fragments_per_chunk: int, actor_index: int = 0
    ) -> None:
        self._actor = actor
        self._lanes = tuple(lanes)
        self._fragments_per_chunk = fragments_per_chunk
        self.numbers = lane_numbers(actor_index, slots, len(lanes))
        """The lane of every slot."""

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes)

    def __len__(self) -> int:
        return len(self._lanes)

    def stream(self, slot: int) -> str:
        """The name of the slot's stream."""
        return f"{self._actor}-{slot}"

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

    def lacking(self, held: NDArray[np.bool_]) -> Counter[str]:
        """How many of the slots that are held, [S] bool, wait for what."""
        counts = np.bincount(self.numbers[held], minlength=len(self._lanes)).tolist()
        lacking: Counter[str] = Counter()
        for lane, slots in zip(self._lanes, counts, strict=True):
            if slots:
                lacking[lane.lack] += slots
        return lacking

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
        """Queues an episode record of the slot's stream. Any thread's."""
        self._lane(slot).shipper.report(episode)

    def news(self) -> None:
        """Something changed that may turn refusals into grants."""
        for lane in self._lanes:
            lane.grants.news()

    def _lane(self, slot: int) -> Lane:
        return self._lanes[int(self.numbers[slot])]

    def _chunk(self, slot: int, sequence: int) -> Chunk:
        return self.stream(slot), sequence // self._fragments_per_chunk
