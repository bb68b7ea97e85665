"""Changes: rows first, in one batch with the ledger, then the memory."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import islice

from minefleet.core.errors import OverloadedError, RejectedError
from minefleet_replay.engine.memory_state import ReplayState
from minefleet_replay.engine.metrics import ReplayMetrics
from minefleet_replay.state.chunk import Chunk, FragmentEntry
from minefleet_replay.state.chunk_grants import RateLimiter
from minefleet_replay.state.deduplication import ChunkName
from minefleet_replay.state.disk_budget_split import row_weight
from minefleet_replay.state.fair_share_admission import Balance
from minefleet_replay.state.lease_forecast import LeaseClock
from minefleet_replay.state.ledger_totals import Amount, Bucket, Ledger, Reason, bucket_of
from minefleet_replay.state.limits import Limits
from minefleet_replay.state.run_state import RunState
from minefleet_replay.state.step_fates_by_task import PLAYED, TRAINED, StepCounter
from minefleet_replay.state.stream_pace import Streams
from minefleet_replay.state.task_curriculum import TaskSampler
from minefleet_replay.storage.payload_log import PayloadLog
from minefleet_replay.storage.rocksdb_store import Family, Store, StoreBatch
from minefleet_replay.storage.row_codec import LEDGER, RUN_STATE, drop_row, number_key

logger = logging.getLogger(__name__)

FULL_RETRY_S = 0.5

SLICE_CHUNKS = 1000
"""Chunks that one change drops at most, when many must leave at once: a write holds up all threads."""


class Transaction:
    """Rows that are written together, and what follows in memory once they are."""

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self.batch = StoreBatch(store)
        self.ledger = ledger
        self.effects: list[Callable[[], None]] = []

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """Sets a row."""
        self.batch.put(family, key, value)

    def delete(self, family: Family, key: bytes) -> None:
        """Removes a row."""
        self.batch.delete(family, key)

    def move(self, source: Bucket, target: Bucket, amount: Amount) -> None:
        """Moves fragments between buckets."""
        self.ledger = self.ledger.moved(source, target, amount)

    def then(self, effect: Callable[[], None]) -> None:
        """Adds what follows in memory."""
        self.effects.append(effect)


class TransactionManager:
    """The store, the state in memory and the rate limiter, which change together. Not thread-safe."""

    def __init__(
        self,
        store: Store,
        payloads: PayloadLog,
        state: ReplayState,
        pacing: RateLimiter,
        metrics: ReplayMetrics,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.payloads = payloads
        self.state = state
        self.pacing = pacing
        self.metrics = metrics
        self.synced = 0
        """Number of the last write that survives power loss with the payloads that it names."""
        self._syncing = threading.Lock()
        self.stored_bytes = 0
        """Payload bytes stored since it was opened."""
        self.stored_raw_bytes = 0
        """Size before packing."""
        self.streams = Streams(state.limits)
        self.shares = StepCounter()
        self._work_by(state.limits)
        self.sampler: TaskSampler | None = None
        """Draws tasks, where the configuration names some."""
        self._wall_clock = wall_clock
        self._leaving: deque[tuple[Chunk, Reason]] = deque()
        self._warned = False

    def change(self) -> Transaction:
        """Begins a change."""
        return Transaction(self.store, self.state.ledger)

    def commit(self, change: Transaction) -> None:
        """Writes a change and follows it in memory; neither when the store refuses.

        Raises:
            OverloadedError: If the disk is full or the store would stall.
        """
        change.put("system", LEDGER, change.ledger.to_row())
        self.store.write(change.batch)
        self.state.ledger = change.ledger
        for effect in change.effects:
            effect()

    def sync(self, number: int) -> None:
        """Returns once write `number`, and the payloads that it names, survive power loss."""
        with self._syncing:
            if self.synced < number:
                written = self.store.written
                self.payloads.sync()
                self.store.sync(written)
                self.synced = written

    def remove_dead(self) -> bool:
        """Gives back the disk space of dead payloads. Returns whether there were any."""
        dead = self.payloads.dead()
        if dead:
            self.sync(self.store.written)
            self.payloads.remove(dead)
        return bool(dead)

    def set_run_state(self, change: Transaction, run_state: RunState) -> None:
        """Changes where the run stands."""
        change.put("system", RUN_STATE, run_state.to_row())
        change.then(partial(setattr, self.state, "run_state", run_state))

    def set_limits(self, limits: Limits) -> None:
        """Works by other limits from now on; what they forbid, and no lease holds, is dropped with the same write.

        Raises:
            OverloadedError: If the disk is full or the store would stall.
        """
        state = self.state
        while self.purge():  # No chunk that is still in the store may have more uses than the new limit.
            pass
        change, floor = self.change(), state.oldest_version
        self.set_run_state(change, replace(state.run_state, live=limits.live, floor=floor))
        oldest_version = max(state.horizon - limits.max_staleness, floor)
        for chunk in state.index.unleased():
            if chunk.uses >= limits.max_reuse:
                self.drop(change, chunk, "trained", chunk.uses)
            elif chunk.oldest_version < oldest_version:
                self.drop(change, chunk, "stale", chunk.uses)
        change.then(partial(self._work_by, limits))
        self.commit(change)

    def end_chunk(self, name: ChunkName) -> None:
        """A chunk is whole, or gone."""
        self.pacing.end_chunk(name)
        self.streams.whole(name)

    def drop_reason(self, chunk: Chunk, uses: int) -> Reason | None:
        """Why a chunk that no lease holds must leave, if it must."""
        if uses >= self.state.limits.max_reuse:
            return "trained"
        if chunk.broken:
            return "corrupt"
        if self.state.is_stale(chunk.oldest_version):
            return "stale"
        return "abandoned" if self.state.is_abandoned(chunk) else None

    def drop(self, change: Transaction, chunk: Chunk, reason: Reason, uses: int) -> None:
        """Drops a chunk that no lease holds after so many acked uses."""
        for fragment in chunk.fragments:
            change.delete("meta", number_key(fragment.number))
        change.delete("uses", number_key(chunk.id))
        self.explain(change, chunk.name, chunk.fragments, reason, uses)
        change.move("live", bucket_of(reason, uses), chunk.sound)
        change.then(partial(self._forget, chunk))

    def explain(
        self, change: Transaction, name: ChunkName, fragments: list[FragmentEntry], reason: Reason, uses: int = 0
    ) -> None:
        """Records why fragments of a chunk leave, for `why-dropped`."""
        row = drop_row(name, fragments, reason, uses, self._wall_clock())
        change.put("drops", number_key(min(fragment.number for fragment in fragments)), row)
        change.then(partial(self.metrics.dropped.labels(reason).inc, len(fragments)))
        if not uses:
            change.then(partial(self.count, name.stream, fragments, reason))

    def count(self, stream: str, fragments: Iterable[FragmentEntry], what: str) -> None:
        """Counts the steps of fragments: played, trained, or the reason for which they left without."""
        self.shares.count(stream, fragments, what)
        if self.balance is not None and what != TRAINED:
            for fragment in fragments:
                self.balance.count(stream, fragment.task, fragment.steps if what == PLAYED else -fragment.steps)

    def drop_all(self, chunks: Iterable[Chunk], reason: Reason) -> None:
        """Drops unleased chunks as one change."""
        change = self.change()
        for chunk in chunks:
            self.drop(change, chunk, reason, chunk.uses)
        if change.effects:
            self.commit(change)

    def mark_dead(self, chunks: Iterable[Chunk], reason: Reason) -> None:
        """Takes unleased chunks out of use at once, however many they are; `purge` drops them."""
        for chunk in chunks:
            self.state.index.mark_dead(chunk)
            self.end_chunk(chunk.name)
            self._leaving.append((chunk, reason))

    def mark_unusable_dead(self) -> None:
        """Marks as dead what had become unusable and was not dropped yet when the store was closed."""
        self.mark_dead(self.state.index.older_than(self.state.oldest_version), "stale")
        if self.state.run_state.abandoned:
            self.mark_dead(self.state.abandoned(), "abandoned")

    def purge(self) -> bool:
        """Drops some of the dead chunks. Returns whether there were any."""
        change, leaving = self.change(), list(islice(self._leaving, SLICE_CHUNKS))
        if not leaving:
            return False
        for chunk, reason in leaving:
            self.drop(change, chunk, reason, chunk.uses)
        self.commit(change)
        for _ in leaving:
            self._leaving.popleft()
        return True

    def make_room(self, steps: int, payload_bytes: int, row_bytes: int, growing: Chunk | None) -> None:
        """Evicts the oldest unleased chunks until a fragment fits.

        Args:
            steps: Of the fragment.
            payload_bytes: Of it.
            row_bytes: Of its row.
            growing: The chunk that it belongs to, if that is there already; it is spared.

        Raises:
            RejectedError: If it could never fit.
            OverloadedError: If all that could make room is leased, or others have filled the disk.
        """
        shortage = self.store.shortage(payload_bytes)
        if shortage is not None:
            raise OverloadedError(shortage, FULL_RETRY_S)
        limits = self.state.limits
        kept_bytes = limits.budget.kept_bytes - payload_bytes - row_weight(row_bytes)
        if kept_bytes < 0:
            raise RejectedError(
                f"a fragment of {payload_bytes} bytes exceeds the {limits.budget.kept_bytes} that max_bytes leaves for "
                "all"
            )
        while self.state.index.steps + steps > limits.max_steps:
            if not self.purge():
                self._evict_oldest(growing)
        while self.payloads.disk_bytes + self.state.index.row_weight > kept_bytes:
            if not self.purge() and not self.remove_dead():
                self._evict_files(growing)

    def _evict_oldest(self, growing: Chunk | None) -> None:
        victim = self.state.index.oldest_unleased(growing)
        if victim is None:
            raise OverloadedError("replay is full, and all of it is leased", FULL_RETRY_S)
        self.drop_all([victim], "evicted")

    def _evict_files(self, growing: Chunk | None) -> None:
        """Evicts all that lies in the oldest files in which nothing is leased, so that the files can be removed."""
        held = self.state.held_files() | {one.place.file for one in (growing.fragments if growing else ())}
        free = [file for file in self.state.index.files() if file not in held]
        evicted_bytes = 0
        for file in free:
            if evicted_bytes >= self.state.limits.budget.evicted_bytes:
                return
            self._warn_if_too_small()
            evicted_bytes += self.payloads.size(file)
            chunks = iter(self.state.index.in_file(file))
            while some := list(islice(chunks, SLICE_CHUNKS)):
                self.drop_all(some, "evicted")
        if not free:
            raise OverloadedError("replay is full, and a part of each file is leased", FULL_RETRY_S)

    def _warn_if_too_small(self) -> None:
        """Warns once when an iteration does not fit: no lease could ever be granted then."""
        held, needed = self.state.index.steps, self.state.limits.steps_per_iteration
        if held < needed and not self._warned:
            self._warned = True
            logger.warning("only %d steps fit, an iteration needs %d: raise max_bytes", held, needed)

    def _work_by(self, limits: Limits) -> None:
        """Begins what depends on limits. Forecasts begin anew, and levels: nothing is owed for other limits."""
        self.state.limits = self.streams.limits = limits
        self.state.index.limit_reuse(limits.max_reuse)
        self.pacing.capacity_steps = limits.capacity_steps
        self.lease_clock = LeaseClock(limits.max_staleness)
        self.balance = None if limits.balance == "speed" else Balance(limits, self.streams)

    def _forget(self, chunk: Chunk) -> None:
        self.state.index.remove(chunk)
        self.end_chunk(chunk.name)
        for fragment in chunk.fragments:
            self.payloads.release(fragment.place.file)
