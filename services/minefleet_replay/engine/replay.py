"""Replay: the verbs of the service under one lock, and what time brings.

    actors ── append ──▶ chunks ── lease ──▶ learner

Handler threads call the verbs. A lease waits on `_changed` until enough chunks may be leased; an append that completes
a chunk, an Ack, a Release, the end of the caller and `close` wake it. Who needs power-loss safety waits for the store's
shared fsync after the lock is let go. The ticker thread calls `tick`.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

from minefleet.core.errors import ContractError, NotFoundError, OverloadedError, RunMismatchError
from minefleet.rpc.replay_types import Outcome, Position
from minefleet.v1 import episode_pb2, replay_service_pb2
from minefleet_replay.engine.append import AppendPath, FragmentUpload
from minefleet_replay.engine.chunk_grants_to_actors import Grant, ReservePath
from minefleet_replay.engine.counters_file import Counters, counters_of, write_counters
from minefleet_replay.engine.lease import LeasePath, LeaseRequest
from minefleet_replay.engine.transaction import TransactionManager
from minefleet_replay.engine.verified_fragment_reads import ReadItem, Stored, read
from minefleet_replay.state.actor_step_totals import ActorCounts
from minefleet_replay.state.chunk import Chunk
from minefleet_replay.state.chunk_grants import RetryAfter
from minefleet_replay.state.deduplication import ChunkName
from minefleet_replay.state.lease_forecast import ForecastRow
from minefleet_replay.state.lease_table import Ending
from minefleet_replay.state.step_fates_by_task import TaskSteps
from minefleet_replay.state.stream_pace import StreamState
from minefleet_replay.storage.identity import ShardIdentity, write_identity
from minefleet_replay.storage.rocksdb_store import Family, StorageError
from minefleet_replay.storage.row_codec import number_key, number_of

logger = logging.getLogger(__name__)

TRIM_SHARE = 100
"""Old records are forgotten when they are more than one in so many of those kept."""

YIELD_S = 0.001
"""Pause between two slices of long work, for others."""

PAGE_BYTES = 4 * 2**20


class LeaseAnswer(NamedTuple):
    """Replay's answer to a Reserve."""

    grants: list[Grant]
    retry_after_s: float
    newest_version: int
    wants_newer_weights: bool
    closing: ForecastRow | None
    longest_chunk_s: float
    """Longest duration of a chunk; infinite where it is not known."""


class Page(NamedTuple):
    """A page of the log of episodes."""

    records: list[episode_pb2.EpisodeRecord]
    next_cursor: int


class Replay:
    """Everything behind the service. Thread-safe."""

    def __init__(
        self,
        directory: Path,
        transactions: TransactionManager,
        *,
        clock: Callable[[], float],
        rng: Random,
        bound: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Stores its parts.

        Args:
            directory: Of the store.
            transactions: The store, the state in memory and the rate limiter.
            clock: Seconds, monotonic.
            rng: Chooses among chunks.
            bound: Called with the run once a first call has named it.
        """
        self._directory = directory
        self.transactions = transactions
        self._clock = clock
        self._bound = bound
        self._grants = ReservePath(transactions, clock)
        self._appends = AppendPath(transactions, clock)
        self._leases = LeasePath(transactions, clock, rng)
        self._hint = RetryAfter()
        self._changed = threading.Condition()
        self._stopped = False
        self._synced_at = clock()
        self._persisting = threading.Lock()
        self._persisted: tuple[ShardIdentity, Counters] | None = None
        self._trimmed: dict[Family, int] = {"episodes": 0, "drops": 0}

    def bind(self, run_id: str, schema_fingerprint: str | None = None) -> None:
        """Binds the store to the run that a first call names.

        Raises:
            RunMismatchError: If the store holds another run.
            ContractError: If the caller's schema is not the run's.
        """
        limits = self.transactions.state.limits
        with self._changed:
            known = self.transactions.state.run_state.run_id
            if not known and run_id:
                self._take_run(run_id)
            elif run_id != known or not run_id:
                raise RunMismatchError(
                    f"replay in {self._directory} holds run {known or '(none)'}, the call names run "
                    f"{run_id or '(none)'}; use another run directory, or resume that run"
                )
        if schema_fingerprint not in (None, limits.schema_fingerprint):
            raise ContractError(
                f"the fragment has schema {schema_fingerprint}, run {run_id} has {limits.schema_fingerprint}"
            )

    def reserve(
        self,
        policy_version: int,
        names: Sequence[ChunkName],
        streams: Sequence[StreamState] = (),
        returned: Sequence[ChunkName] = (),
    ) -> LeaseAnswer:
        """Grants the chunks that may be made with these weights; renews grants, and takes back those `returned`."""
        with self._changed:
            now = self._clock()
            for name in returned:
                self.transactions.pacing.revoke(name)
            for stream in streams:
                self.transactions.streams.update(stream, now)
            closing = self.transactions.lease_clock.forecast(now)
            longest_s = self.transactions.streams.longest_chunk_s(closing)
            grants, free_steps, free_to_newest = self._grants.reserve(policy_version, names, closing, longest_s)
            newest_version = self.transactions.state.run_state.newest_version
            wants_newer = policy_version < newest_version and not free_steps and free_to_newest > 0
            return LeaseAnswer(grants, self._hint.retry_after_s, newest_version, wants_newer, closing, longest_s)

    def append(self, upload: FragmentUpload) -> Outcome | None:
        """Stores an upload, durably against `kill -9`. Returns what became of its fragment, if it has one."""
        with self._changed:
            outcome = self._appends.append(upload)
            self._changed.notify_all()
        return outcome

    def sync_appends(self) -> int:
        """Returns once what was appended survives what it shall. Returns the newest version, for the answer."""
        with self._changed:
            newest_version, written = self.transactions.state.run_state.newest_version, self.transactions.store.written
        if self.transactions.state.limits.syncs_appends:
            self.transactions.sync(written)
        return newest_version

    def lease(
        self, learner: Position, wanted: LeaseRequest, wait_s: float, is_wanted: Callable[[], bool] = lambda: True
    ) -> list[Chunk]:
        """Leases chunks, durably; waits until there are enough. Empty when the wait ran out."""
        leased: list[Chunk] | None = None

        def is_over() -> bool:
            nonlocal leased
            if self._stopped or not is_wanted():
                return True
            self._leases.admit(learner)
            leased = self._leases.lease(wanted)
            return leased is not None

        began = self._clock()
        ends_at = time.monotonic() + wait_s
        with self._changed:
            while not is_over() and (left_s := ends_at - time.monotonic()) > 0:
                self._changed.wait(min(left_s, self._leases.patience_s))
            written = self.transactions.store.written
        if leased is not None:
            # Synced whatever the durability of appends: a charge that power loss took back could be spent twice.
            self.transactions.store.sync(written)
            self.transactions.metrics.lease_wait.observe(self._clock() - began)
        return leased or []

    def chunks_in_lease(self, learner: Position, number: int, names: Sequence[ChunkName]) -> list[Chunk]:
        """The chunks of an open lease, or those named.

        Raises:
            NotFoundError: If no such lease is open, or it does not hold one of them.
        """
        with self._changed:
            self._leases.admit(learner)
            leased = {chunk.name: chunk for chunk in self._leases.chunks_in_lease(number)}
        missing = [name for name in names if name not in leased]
        if missing:
            raise NotFoundError(f"lease {number} does not hold chunk {missing[0].stream}/{missing[0].number}")
        return [leased[name] for name in names or leased]

    def refuse_fenced(self, learner: Position) -> None:
        """Raises FencedError if a newer epoch has taken over. Takes no lock, for it reads a single number."""
        self._leases.refuse_fenced(learner)

    def fetch(self, items: Sequence[ReadItem]) -> list[Stored | None]:
        """Reads leased fragments; None for those that are corrupt, which quarantines them.

        Raises:
            NotFoundError: If the lease of a corrupt one was closed meanwhile.
        """
        found = read(self.transactions.store, self.transactions.payloads, items)
        for item, stored in zip(items, found, strict=True):
            if stored is None:
                with self._changed:
                    self._leases.quarantine(*item)
        return found

    def close_lease(self, learner: Position, number: int, ending: Ending) -> None:
        """Acks or releases a lease."""
        with self._changed:
            self._leases.admit(learner)
            self._leases.close(number, ending)
            self._hint.room_was_made(self._clock())
            written = self.transactions.store.written
            self._changed.notify_all()
        if self.transactions.state.limits.syncs_appends:
            self.transactions.sync(written)

    def read_episodes(self, learner: Position, cursor: int, limit: int) -> Page:
        """Returns at most `limit` records from a cursor on, and where to go on."""
        with self._changed:
            self._leases.admit(learner)
            stop = self.transactions.state.next_episode
        cursor = max(min(cursor, stop), self._trimmed["episodes"])
        records, page_bytes = list[episode_pb2.EpisodeRecord](), 0
        for key, row in self.transactions.store.scan("episodes", number_key(cursor), number_key(stop)):
            page_bytes += len(row)
            if len(records) == limit or (page_bytes > PAGE_BYTES and records):
                break
            records.append(episode_pb2.EpisodeRecord.FromString(row))
            cursor = number_of(key) + 1
        return Page(records, cursor)

    def progress(self) -> ActorCounts:
        """The sums of the actors' reports."""
        with self._changed:
            return self.transactions.state.progress.total

    def shares(self) -> tuple[list[TaskSteps], list[TaskSteps], ForecastRow | None]:
        """The fate of each task's steps, and of those of the streams with the smallest trained shares."""
        with self._changed:
            slow, closing = self.transactions.streams.too_slow, self.transactions.lease_clock.forecast(self._clock())
            let_off = {} if self.transactions.balance is None else self.transactions.balance.let_off
            return self.transactions.shares.tasks(slow, let_off), self.transactions.shares.starved(slow), closing

    def count_steps(self, streams: Sequence[str]) -> list[replay_service_pb2.StepAccount]:
        """The fate of the steps of the streams among these that are known."""
        with self._changed:
            return [steps.to_proto() for steps in self.transactions.shares.of_streams(streams)]

    def wake(self) -> None:
        """Wakes waiting leases."""
        with self._changed:
            self._changed.notify_all()

    def stop_waiting(self) -> None:
        """Ends all waits: the server drains."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def close(self) -> None:
        """Writes what was counted, if that can be done, and closes the store. No verb may be called any more."""
        self.stop_waiting()
        with suppress(OverloadedError, StorageError):
            self._sync()
        self.transactions.payloads.close()
        self.transactions.store.close()

    def tick(self) -> None:
        """Does what time brings: silent streams, power-loss safety, old records, disk space.

        Raises:
            OverloadedError: If the store is too busy now; nothing is lost by trying later.
            StorageError: If the store must be opened again.
        """
        self._purge()
        with self._changed:
            if self.transactions.store.failure:
                raise StorageError(self.transactions.store.failure)
            if self.transactions.store.is_refusing:
                self.transactions.commit(self.transactions.change())
            self._drop_silent()
            self._give_up_late()
            state = self.transactions.state
            self._trim("episodes", state.next_episode, state.limits.episodes_kept)
            self._trim("drops", state.ledger.appended, state.limits.drops_kept)
            dead = self.transactions.payloads.dead()
        self._sync()
        with self._changed:
            self.transactions.payloads.remove(dead)

    def stats(self) -> dict[str, float]:
        """Statistics for the status."""
        with self._changed:
            state, pacing, now = self.transactions.state, self.transactions.pacing, self._clock()
            unsynced_writes = self.transactions.store.written - self.transactions.synced
            return {
                **state.stats(),
                "unaccounted_fragments": state.ledger.fragments.unaccounted,
                "unaccounted_steps": state.ledger.steps.unaccounted,
                "granted_chunks": pacing.granted_chunks,
                "coming_steps": pacing.coming_steps,
                "capacity_steps": state.limits.capacity_steps,
                "payload_disk_bytes": self.transactions.payloads.disk_bytes,
                "stored_bytes": self.transactions.stored_bytes,
                "stored_raw_bytes": self.transactions.stored_raw_bytes,
                "oldest_lease_seconds": now - min(state.leases.since.values(), default=now),
                "unsynced_writes": unsynced_writes,
                "unsynced_seconds": now - self._synced_at if unsynced_writes else 0.0,
            }

    def shortage(self) -> str | None:
        """The shortage that keeps replay from taking fragments in, if any."""
        return self.transactions.store.shortage()

    def rocksdb_property(self, name: str) -> int:
        """One of RocksDB's own properties of the largest family."""
        return self.transactions.store.property("meta", name)

    def _take_run(self, run_id: str) -> None:
        limits, change = self.transactions.state.limits, self.transactions.change()
        self.transactions.set_run_state(
            change, replace(self.transactions.state.run_state, run_id=run_id, schema=limits.schema_fingerprint)
        )
        self.transactions.commit(change)
        self._sync()
        self._bound(run_id)
        logger.info("the store holds run %s from now on", run_id)

    def _purge(self) -> None:
        """Drops dead chunks, slice by slice; other calls get the lock in between."""
        with self._changed:
            while self.transactions.purge():
                self._changed.wait(YIELD_S)

    def _drop_silent(self) -> None:
        """Drops incomplete chunks whose streams fell silent: they would hold room for ever."""
        self.transactions.streams.expire(self._clock() - self.transactions.state.limits.grant_timeout_s)
        for name in self.transactions.pacing.expire(self._clock()):
            chunk = self.transactions.state.index.find(name)
            if chunk is None:
                self.transactions.end_chunk(name)
            else:
                self.transactions.drop_all([chunk], "incomplete")

    def _give_up_late(self) -> None:
        """Keeps no room for chunks that are far behind: a lease that needs it could not be filled."""
        now = self._clock()
        late_s = self.transactions.streams.late_s(self.transactions.lease_clock.forecast(now))
        self.transactions.pacing.give_up(now - late_s)

    def _trim(self, family: Family, newest: int, kept: int) -> None:
        """Forgets the oldest records of a family, many at once."""
        start, stop = self._trimmed[family], newest - kept
        if stop <= start + kept // TRIM_SHARE:
            return
        change = self.transactions.change()
        change.batch.delete_range(family, number_key(start), number_key(stop))
        self.transactions.commit(change)
        self._trimmed[family] = stop

    def _sync(self) -> None:
        """Makes what is written survive power loss, and what was counted the loss of the store."""
        with self._changed:
            written, appended, began = (
                self.transactions.store.written,
                self.transactions.state.ledger.appended,
                self._clock(),
            )
        self.transactions.sync(written)
        self._synced_at = began
        self._persist_counters(appended)

    def _persist_counters(self, appended: int) -> None:
        """Writes the store's identity and counters, if they changed, with so many fragments known to be synced."""
        state = self.transactions.state
        with self._changed:
            counters = counters_of(self.transactions.store, state.next_episode)
        with self._persisting:
            shard, shards = state.limits.shard, state.limits.shards
            identity = ShardIdentity(run_id=state.run_state.run_id, appended=appended, shard=shard, shards=shards)
            if (identity, counters) != self._persisted:
                write_counters(self._directory, counters)
                write_identity(self._directory, identity)
                self._persisted = identity, counters
