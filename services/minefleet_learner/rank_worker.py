"""Every rank but rank 0: it receives what to read and when to train, and knows nothing else of the run.

    rank 0 ── "part" ───▶ follower ──▶ prefetcher: read, decode, collate
    rank 0 ── "update" ─▶ follower ──▶ take the batch, train with the others
    rank 0 ── "end" ────▶ follower ──▶ leave

It waits for rank 0 as long as that takes. It is not asked to stop by signals: rank 0 is, and says so when all are done
with what they do together. Its weights are those of rank 0 at every moment, so it publishes and saves nothing. Its
random generators are seeded anew for every iteration, so that a checkpoint needs nothing of it.
"""

import logging
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf import json_format

from minefleet.config.live_settings import with_settings
from minefleet.rpc.replay_types import Order, Packed, Position
from minefleet.runs.run_yaml import Run
from minefleet.v1.replay_service_pb2 import LeasedChunk
from minefleet_learner.checkpoints.restore import restore
from minefleet_learner.data.prefetcher import Prefetcher
from minefleet_learner.data.sharded_replay import Shards
from minefleet_learner.distributed.ranks import Ranks
from minefleet_learner.rank_coordinator import END, PART, START, UPDATE, compare, whole_lease
from minefleet_learner.training.rng_state import seed_everything
from minefleet_learner.training.schedules import Rates
from minefleet_learner.training.updater import Updater

logger = logging.getLogger(__name__)


class FollowingShards:
    """All shards of replay, of which this rank reads what rank 0 has leased for it. See `Leases`."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._parts: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def hand(self, part: dict[str, Any]) -> None:
        """Reads a part that rank 0 has announced."""
        self._parts.put(part)

    def lease(
        self, number: int, *, use_version: int, wait_s: float, order: Order, settings: str = ""
    ) -> list[LeasedChunk] | None:
        """Returns this rank's part of the next lease; None when the wait ran out."""
        try:
            part = self._parts.get(timeout=wait_s)
        except queue.Empty:
            return None
        assert part["number"] == number, f"rank 0 tells of lease {part['number']}, expected {number}"
        self._shards.set_position(Position(**part["position"]))
        self._shards.place(number, part["homes"])
        return [json_format.ParseDict(chunk, LeasedChunk()) for chunk in part["chunks"]]

    def read(self, number: int, chunks: Sequence[LeasedChunk]) -> Iterator[Packed]:
        """As `Shards.read`."""
        return self._shards.read(number, chunks)

    def ack(self, number: int) -> int:
        """Forgets a lease; rank 0 releases it."""
        self._shards.forget(number)
        return 0

    def release(self, number: int) -> None:
        """Forgets a lease, likewise."""
        self._shards.forget(number)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankWorker:
    """The parts of a follower: `follow`, then `close`."""

    run: Run
    ranks: Ranks
    updater: Updater
    replay: Shards
    parts: FollowingShards
    prefetcher: Prefetcher
    over: threading.Event
    """Ends every wait for replay."""

    def follow(self) -> None:
        """Does what rank 0 says, until it says that this is all.

        Raises:
            RanksError: If rank 0 is gone.
        """
        while (message := self.ranks.receive())["kind"] != END:
            if message["kind"] == START:
                restore(self.run, self.updater)
                compare(self.ranks, self.updater)
            elif message["kind"] == PART:
                self.parts.hand(message)
            elif message["kind"] == UPDATE:
                if message["settings"] is not None:
                    self.updater.configure(with_settings(self.run.config, message["settings"]).train_config)
                self._update(message["iteration"], message["version"], Rates(**message["rates"]))
        self.ranks.exit_barrier()

    def close(self) -> None:
        """Ends all threads."""
        self.over.set()
        self.prefetcher.end()
        self.prefetcher.close()
        self.replay.close()
        self.ranks.close()

    def _update(self, iteration: int, version: int, rates: Rates) -> None:
        seeds = np.random.SeedSequence((self.run.config.seed, self.ranks.rank, iteration))
        seed_everything(int(seeds.generate_state(1)[0]))
        lease, batch = self.prefetcher.take(version)
        self.updater.update(batch, rates)
        whole_lease(self.ranks, lease)
        self.prefetcher.ack(lease)
