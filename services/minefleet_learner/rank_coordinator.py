"""Rank 0 towards the others: which fragments are whose, and what to do with them.

    prefetcher   lease ─▶ part ─▶ broadcast "part"     the others read theirs meanwhile, one iteration ahead
    loop         rates ─▶ broadcast "update"           all train together
                 end   ─▶ broadcast "end"              the others leave

Each message carries all that only rank 0 knows; the others call replay alone, for the bytes of their own fragments.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from google.protobuf import json_format

from minefleet.core.errors import ConfigError
from minefleet.rpc.replay_types import Order, Packed
from minefleet.v1.replay_service_pb2 import LeasedChunk
from minefleet_learner.data.prefetcher import LeaseInfo
from minefleet_learner.data.sharded_replay import Shards
from minefleet_learner.distributed.ranks import Ranks
from minefleet_learner.training.optimizer_state_arrays import digest, optimizer_tensors
from minefleet_learner.training.schedules import Rates
from minefleet_learner.training.updater import Updater

START, PART, UPDATE, END = "start", "part", "update", "end"
"""Kinds of messages."""


class LeadingShards:
    """All shards of replay, of which rank 0 leases the fragments of all ranks and reads its own. See `Leases`."""

    def __init__(self, shards: Shards, ranks: Ranks) -> None:
        self._shards = shards
        self._ranks = ranks

    def lease(
        self, number: int, *, use_version: int, wait_s: float, order: Order, settings: str = ""
    ) -> list[LeasedChunk] | None:
        """Leases for all ranks and sends the others their parts. Returns that of rank 0."""
        chunks = self._shards.lease(number, use_version=use_version, wait_s=wait_s, order=order, settings=settings)
        if chunks is None:
            return None
        parts = split(chunks, self._ranks.size)
        lease = {"number": number, "position": asdict(self._shards.position), "homes": self._shards.homes(number)}
        self._ranks.broadcast(
            lambda rank: {"kind": PART, **lease, "chunks": [json_format.MessageToDict(chunk) for chunk in parts[rank]]}
        )
        return parts[0]

    def read(self, number: int, chunks: Sequence[LeasedChunk]) -> Iterator[Packed]:
        """As `Shards.read`."""
        return self._shards.read(number, chunks)

    def ack(self, number: int) -> int:
        """As `Shards.ack`, for all ranks."""
        return self._shards.ack(number)

    def release(self, number: int) -> None:
        """As `Shards.release`, for all ranks."""
        self._shards.release(number)


def split(chunks: Sequence[LeasedChunk], size: int) -> list[list[LeasedChunk]]:
    """Gives every rank its part, as even as whole streams allow: a stream's chunks continue each other."""
    streams: dict[str, list[LeasedChunk]] = {}
    for chunk in chunks:
        streams.setdefault(chunk.name.stream, []).append(chunk)
    parts: list[list[LeasedChunk]] = [[] for _ in range(size)]
    loads = [0] * size
    for stream in sorted(streams.values(), key=_steps, reverse=True):
        rank = loads.index(min(loads))
        parts[rank] += stream
        loads[rank] += _steps(stream)
    return parts


def begin(ranks: Ranks, updater: Updater) -> None:
    """Makes the other ranks start from the newest checkpoint, and waits for it.

    Raises:
        ConfigError: If they started from something else.
    """
    ranks.broadcast(lambda _: {"kind": START})
    compare(ranks, updater)


def compare(ranks: Ranks, updater: Updater) -> None:
    """Makes sure that all ranks have the same weights and moments. Every rank calls it."""
    if ranks.is_alone:
        return
    moments = optimizer_tensors(updater.policy, updater.optimizer)
    if len({str(one) for one in ranks.gather([digest(updater.policy.state_dict()), digest(moments)])}) > 1:
        raise ConfigError(
            "the ranks have not started from the same checkpoint; every rank needs the same run directory, "
            "with the same files in it"
        )


def have_update(
    ranks: Ranks, rates: Rates, settings: Mapping[str, Any] | None, *, iteration: int, version: int
) -> None:
    """Sends the other ranks the next part, to train on, and the settings where those have changed."""
    update = {"iteration": iteration, "version": version, "rates": asdict(rates), "settings": settings}
    ranks.broadcast(lambda _: {"kind": UPDATE, **update})


def whole_lease(ranks: Ranks, mine: LeaseInfo) -> LeaseInfo:
    """The fragments of a lease that all ranks have read. Every rank calls it."""
    if ranks.is_alone:
        return mine
    parts = [LeaseInfo(**part) for part in ranks.gather(asdict(mine))]
    return LeaseInfo(
        number=mine.number,
        staleness=[staleness for part in parts for staleness in part.staleness],
        uses=[uses for part in parts for uses in part.uses],
        new_steps=sum(part.new_steps for part in parts),
    )


def end(ranks: Ranks) -> None:
    """Sends the other ranks home, and waits until they have received that."""
    ranks.broadcast(lambda _: {"kind": END})
    ranks.exit_barrier()


def _steps(chunks: Sequence[LeasedChunk]) -> int:
    return sum(chunk.steps for chunk in chunks)
