"""All shards of replay as one: a lease is made of a part from every shard.

    shard 0 ── its part of every iteration ──┐
    shard 1 ── its part of every iteration ──┼──▶ lease, read ──▶ prefetcher
    ...                                      ┘

With several shards, threads ask them for a lease at the same time: all learn at once which version it is for, and their
waits do not add up. What answers at once is asked for in order. A lease has one number on all shards; where the wait
ran out on one of them, the others keep their parts for when it is asked for again. A shard that is away is waited for.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

from minefleet.core.errors import FencedError, FleetError, NotFoundError
from minefleet.rpc.replay_client import ReplayClient
from minefleet.rpc.replay_types import Lease, Order, Packed, Position
from minefleet.rpc.retrier import StoppedError
from minefleet.v1 import episode_pb2
from minefleet.v1.replay_service_pb2 import LeasedChunk

EPISODES_PER_PAGE = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardPart:
    """One shard, and what it does for an iteration."""

    replay: ReplayClient
    steps: int
    """In one lease."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NewEpisodes:
    """New entries of all shards' logs."""

    records: list[episode_pb2.EpisodeRecord]
    cursors: list[int]
    """The next position, one per shard."""


class Shards:
    """The learner's calls to all shards."""

    def __init__(self, parts: Sequence[ShardPart]) -> None:
        self._parts = parts
        self.latest: Sequence[Lease] = ()
        """Each shard's latest answer, with the fate of the steps of tasks."""
        self._homes: dict[int, Mapping[str, int]] = {}
        """Of each open lease, the shard that its streams lie on."""
        self._threads = ThreadPoolExecutor(len(parts), thread_name_prefix="lease") if len(parts) > 1 else None

    @property
    def position(self) -> Position:
        """The learner's position."""
        return self._parts[0].replay.position

    def set_position(self, position: Position) -> None:
        """Sets the learner's position, which goes along with every call from now on."""
        for part in self._parts:
            part.replay.position = position

    def send_position(self) -> None:
        """Has all shards know the position now, by a call that does nothing else."""
        for part in self._parts:
            part.replay.read_episodes(0, 1)

    def lease(
        self, number: int, *, use_version: int, wait_s: float, order: Order, settings: str = ""
    ) -> list[LeasedChunk] | None:
        """Leases the chunks of one iteration; None when the wait ran out. Asking again adds what is missing."""

        def call_all(part: ShardPart) -> Lease:
            return part.replay.lease(
                number, steps=part.steps, use_version=use_version, wait_s=wait_s, order=order, settings=settings
            )

        leases = list(map(call_all, self._parts) if self._threads is None else self._threads.map(call_all, self._parts))
        self.latest = leases
        parts = [lease.chunks for lease in leases]
        if not all(parts):
            return None
        self.place(number, {chunk.name.stream: shard for shard, chunks in enumerate(parts) for chunk in chunks})
        return list(chain.from_iterable(parts))

    def place(self, number: int, homes: Mapping[str, int]) -> None:
        """Records on which shard the streams of an open lease lie."""
        self._homes[number] = homes

    def forget(self, number: int) -> None:
        """Forgets where the streams of a lease lie."""
        self._homes.pop(number, None)

    def homes(self, number: int) -> Mapping[str, int]:
        """On which shard the streams of an open lease lie."""
        return self._homes[number]

    def read(self, number: int, chunks: Sequence[LeasedChunk]) -> Iterator[Packed]:
        """Yields the fragments of chunks of a lease, shard by shard."""
        homes = self._homes[number]
        for shard, part in enumerate(self._parts):
            mine = [chunk for chunk in chunks if homes[chunk.name.stream] == shard]
            if mine:
                yield from part.replay.read(number, mine)

    def ack(self, number: int) -> int:
        """Acks a lease as trained. Returns the environment steps that actors have reported."""
        self.forget(number)
        return sum(part.replay.ack(number) for part in self._parts)

    def release(self, number: int) -> None:
        """Gives a lease back unused, on every shard that can be asked.

        Raises:
            FleetError: What the first shard said that had no such lease, or could not be asked.
        """
        self.forget(number)
        errors = list[FleetError]()
        for part in self._parts:
            try:
                part.replay.release(number)
            except (NotFoundError, FencedError, StoppedError) as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def read_episodes(self, cursors: Sequence[int]) -> NewEpisodes:
        """Returns finished episodes from one cursor per shard on, none for the beginning."""
        starts = cursors or [0] * len(self._parts)
        new = NewEpisodes(records=[], cursors=[])
        for part, cursor in zip(self._parts, starts, strict=True):
            new.cursors.append(_read_log(part.replay, cursor, new.records))
        return new

    def close(self) -> None:
        """Closes all channels; calls in flight fail."""
        if self._threads is not None:
            self._threads.shutdown()
        for part in self._parts:
            part.replay.close()


def _read_log(replay: ReplayClient, cursor: int, records: list[episode_pb2.EpisodeRecord]) -> int:
    """Appends the records from a cursor on; returns where to go on."""
    more = True
    while more:
        page = replay.read_episodes(cursor, EPISODES_PER_PAGE)
        records += page.episodes
        cursor, more = page.next_cursor, len(page.episodes) == EPISODES_PER_PAGE
    return cursor
