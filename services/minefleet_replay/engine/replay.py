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
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

from minefleet.core.errors import ContractError, NotFoundError, RunMismatchError
from minefleet.v1 import episode_pb2
from minefleet_replay.engine.append import AppendPath, FragmentUpload, Grant, Outcome
from minefleet_replay.engine.counters import Counters, counters_of, write_counters
from minefleet_replay.engine.lease import ChunkInLease, LearnerPosition, LeasePath, LeaseRequest
from minefleet_replay.engine.read import ReadItem, Stored, read
from minefleet_replay.engine.transaction import TransactionManager
from minefleet_replay.state.actor_progress import ActorCounts
from minefleet_replay.state.chunk_names import ChunkName
from minefleet_replay.state.lease_forecast import ForecastRow
from minefleet_replay.state.leases import Ending
from minefleet_replay.state.rate_limiter import RetryAfter
from minefleet_replay.state.step_shares import TaskSteps
from minefleet_replay.state.streams import StreamState
from minefleet_replay.storage.identity import ShardIdentity, write_identity
from minefleet_replay.storage.rocksdb import Family, StorageError
from minefleet_replay.storage.rows import number_key, number_of

logger = logging.getLogger(__name__)

TRIM_SHARE = 100
"""Old records are forgotten when they are more than one in so many of those kept."""

BREATH_S = 0.001
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
        keeper: TransactionManager,
        *,
        clock: Callable[[], float],
        rng: Random,
        bound: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Stores its parts.

        Args:
            directory: Of the store.
            keeper: The store, the books and the pacing.
            clock: Seconds, monotonic.
            rng: Chooses among chunks.
            bound: Told the run once a first call has named it.
        """
        self._directory = directory
        self.keeper = keeper
        self._clock = clock
        self._bound = bound
        self._intake = AppendPath(keeper, clock)
        self._lending = LeasePath(keeper, clock, rng)
        self._hint = RetryAfter()
        self._changed = threading.Condition()
        self._stopped = False
        self._synced_at = clock()
        self._noting = threading.Lock()
        self._noted: tuple[ShardIdentity, Counters] | None = None
        self._trimmed: dict[Family, int] = {"episodes": 0, "drops": 0}

    def bind(self, run_id: str, schema_fingerprint: str | None = None) -> None:
        """Takes the run that a first call names.

        Raises:
            RunMismatchError: If the store holds another run.
            ContractError: If the caller's schema is not the run's.
        """
        limits = self.keeper.books.limits
        with self._changed:
            known = self.keeper.books.standing.run_id
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
        self, policy_version: int, names: Sequence[ChunkName], streams: Sequence[StreamState] = ()
    ) -> LeaseAnswer:
        """Says which chunks may be made with these weights; renews grants."""
        with self._changed:
            for stream in streams:
                self.keeper.streams.hear(stream, self._clock())
            closing = self.keeper.lease_clock.forecast(self._clock())
            longest_s = self.keeper.streams.longest_chunk_s(closing)
            grants, free_steps, free_to_newest = self._intake.reserve(policy_version, names, closing, longest_s)
            newest_version = self.keeper.books.standing.newest_version
            wants_newer = policy_version < newest_version and not free_steps and free_to_newest > 0
            return LeaseAnswer(grants, self._hint.retry_after_s, newest_version, wants_newer, closing, longest_s)

    def append(self, upload: FragmentUpload) -> Outcome | None:
        """Stores an upload, durably against `kill -9`. Returns what became of its fragment, if it has one."""
        with self._changed:
            outcome = self._intake.append(upload)
            self._changed.notify_all()
        return outcome

    def settle(self) -> int:
        """Returns once what was appended survives what it shall. Returns the newest version, for the answer."""
        with self._changed:
            newest_version, written = self.keeper.books.standing.newest_version, self.keeper.store.written
        if self.keeper.books.limits.syncs_appends:
            self.keeper.sync(written)
        return newest_version

    def lease(
        self,
        learner: LearnerPosition,
        wanted: LeaseRequest,
        wait_s: float,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> list[ChunkInLease]:
        """Leases chunks, durably; waits until there are enough. Empty when the wait ran out."""
        lent: list[ChunkInLease] | None = None

        def is_over() -> bool:
            nonlocal lent
            if self._stopped or not is_wanted():
                return True
            self._lending.admit(learner)
            lent = self._lending.lease(wanted)
            return lent is not None

        began = self._clock()
        ends_at = time.monotonic() + wait_s
        with self._changed:
            while not is_over() and (left_s := ends_at - time.monotonic()) > 0:
                self._changed.wait(min(left_s, self._lending.patience_s))
            written = self.keeper.store.written
        if lent is not None:
            # Synced whatever the durability of appends: a charge that power loss took back could be spent twice.
            self.keeper.store.sync(written)
            self.keeper.metrics.lease_wait.observe(self._clock() - began)
        return lent or []

    def lent(self, learner: LearnerPosition, number: int, names: Sequence[ChunkName]) -> list[ChunkInLease]:
        """The chunks of an open lease, or those named.

        Raises:
            NotFoundError: If no such lease is open, or it does not hold one of them.
        """
        with self._changed:
            self._lending.admit(learner)
            lent = {chunk.name: chunk for chunk in self._lending.lent(number)}
        missing = [name for name in names if name not in lent]
        if missing:
            raise NotFoundError(f"lease {number} does not hold chunk {missing[0].stream}/{missing[0].number}")
        return [lent[name] for name in names or lent]

    def refuse_fenced(self, learner: LearnerPosition) -> None:
        """Raises FencedError if a newer epoch has taken over. Takes no lock, for it reads a single number."""
        self._lending.refuse_fenced(learner)

    def fetch(self, wishes: Sequence[ReadItem]) -> list[Stored | None]:
        """Reads leased fragments; None for those that are corrupt, which quarantines them.

        Raises:
            NotFoundError: If the lease of a corrupt one was closed meanwhile.
        """
        found = read(self.keeper.store, self.keeper.payloads, wishes)
        for wish, stored in zip(wishes, found, strict=True):
            if stored is None:
                with self._changed:
                    self._lending.quarantine(*wish)
        return found

    def close_lease(self, learner: LearnerPosition, number: int, ending: Ending) -> None:
        """Acks or releases a lease."""
        with self._changed:
            self._lending.admit(learner)
            self._lending.close(number, ending)
            self._hint.room_was_made(self._clock())
            written = self.keeper.store.written
            self._changed.notify_all()
        if self.keeper.books.limits.syncs_appends:
            self.keeper.sync(written)

    def read_episodes(self, learner: LearnerPosition, cursor: int, limit: int) -> Page:
        """Returns at most `limit` records from a cursor on, and where to go on."""
        with self._changed:
            self._lending.admit(learner)
            stop = self.keeper.books.next_episode
        cursor = max(min(cursor, stop), self._trimmed["episodes"])
        records, page_bytes = list[episode_pb2.EpisodeRecord](), 0
        for key, row in self.keeper.store.scan("episodes", number_key(cursor), number_key(stop)):
            page_bytes += len(row)
            if len(records) == limit or (page_bytes > PAGE_BYTES and records):
                break
            records.append(episode_pb2.EpisodeRecord.FromString(row))
            cursor = number_of(key) + 1
        return Page(records, cursor)

    def progress(self) -> ActorCounts:
        """The sums of the actors' reports."""
        with self._changed:
            return self.keeper.books.progress.total

    def shares(self) -> tuple[list[TaskSteps], list[TaskSteps], ForecastRow | None]:
        """The fate of each task's steps, and of those of the streams with the smallest trained shares."""
        with self._changed:
            slow, closing = self.keeper.streams.too_slow, self.keeper.lease_clock.forecast(self._clock())
            let_off = {} if self.keeper.balance is None else self.keeper.balance.let_off
            return self.keeper.shares.tasks(slow, let_off), self.keeper.shares.starved(slow), closing

    def wake(self) -> None:
        """Lets waiting leases look again."""
        with self._changed:
            self._changed.notify_all()

    def stop_waiting(self) -> None:
        """Ends all waits: the server drains."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def close(self) -> None:
        """Closes the store. No verb may be called any more."""
        self.stop_waiting()
        self.keeper.payloads.close()
        self.keeper.store.close()

    def tick(self) -> None:
        """Does what time brings: silent streams, power-loss safety, old records, disk space.

        Raises:
            OverloadedError: If the store is too busy now; nothing is lost by trying later.
            StorageError: If the store must be opened again.
        """
        self._sweep()
        with self._changed:
            if self.keeper.store.failure:
                raise StorageError(self.keeper.store.failure)
            if self.keeper.store.is_refusing:
                self.keeper.commit(self.keeper.change())
            self._drop_silent()
            books = self.keeper.books
            self._trim("episodes", books.next_episode, books.limits.episodes_kept)
            self._trim("drops", books.ledger.appended, books.limits.drops_kept)
            written, appended, began = self.keeper.store.written, books.ledger.appended, self._clock()
            dead = self.keeper.payloads.dead()
        self.keeper.sync(written)
        self._synced_at = began
        self._note(appended)
        with self._changed:
            self.keeper.payloads.remove(dead)

    def figures(self) -> dict[str, float]:
        """Figures for the status."""
        with self._changed:
            books, pacing, now = self.keeper.books, self.keeper.pacing, self._clock()
            unsynced_writes = self.keeper.store.written - self.keeper.synced
            return {
                **books.ledger.figures(),
                "unaccounted_fragments": books.ledger.fragments.unaccounted,
                "unaccounted_steps": books.ledger.steps.unaccounted,
                "granted_chunks": pacing.granted_chunks,
                "coming_steps": pacing.coming_steps,
                "room_steps": books.limits.room_steps,
                "held_chunks": len(books.index),
                "held_steps": books.index.steps,
                "held_payload_bytes": books.index.payload_bytes,
                "payload_disk_bytes": self.keeper.payloads.disk_bytes,
                "stored_bytes": self.keeper.stored_bytes,
                "stored_raw_bytes": self.keeper.stored_raw_bytes,
                "open_leases": len(books.leases.open),
                "oldest_lease_seconds": now - min(books.leases.since.values(), default=now),
                "known_streams": len(books.names),
                **books.index.figures(),
                "newest_version": books.standing.newest_version,
                "epoch": books.standing.epoch,
                "env_steps": books.progress.total.env_steps,
                "env_failures": books.progress.total.env_failures,
                "unsynced_writes": unsynced_writes,
                "unsynced_seconds": now - self._synced_at if unsynced_writes else 0.0,
            }

    def shortage(self) -> str | None:
        """The shortage that keeps replay from taking fragments in, if any."""
        return self.keeper.store.shortage()

    def storage_figure(self, name: str) -> int:
        """One of RocksDB's own figures of the largest family."""
        return self.keeper.store.property("meta", name)

    def _take_run(self, run_id: str) -> None:
        limits, change = self.keeper.books.limits, self.keeper.change()
        self.keeper.stand(
            change,
            replace(
                self.keeper.books.standing,
                run_id=run_id,
                schema=limits.schema_fingerprint,
            ),
        )
        self.keeper.commit(change)
        self.keeper.sync(self.keeper.store.written)
        self._note(self.keeper.books.ledger.appended)
        self._bound(run_id)
        logger.info("the store holds run %s from now on", run_id)

    def _sweep(self) -> None:
        """Drops what is condemned, slice by slice; other calls get the lock in between."""
        with self._changed:
            while self.keeper.sweep():
                self._changed.wait(BREATH_S)

    def _drop_silent(self) -> None:
        """Drops incomplete chunks whose streams fell silent: they would hold room for ever."""
        self.keeper.streams.expire(self._clock() - self.keeper.books.limits.grant_timeout_s)
        for name in self.keeper.pacing.expire(self._clock()):
            chunk = self.keeper.books.index.find(name)
            if chunk is None:
                self.keeper.settle(name)
            else:
                self.keeper.drop_all([chunk], "incomplete")

    def _trim(self, family: Family, newest: int, kept: int) -> None:
        """Forgets the oldest records of a family, many at once."""
        start, stop = self._trimmed[family], newest - kept
        if stop <= start + kept // TRIM_SHARE:
            return
        change = self.keeper.change()
        change.batch.delete_range(family, number_key(start), number_key(stop))
        self.keeper.commit(change)
        self._trimmed[family] = stop

    def _note(self, appended: int) -> None:
        """Writes the store's identity and counters, if they changed, with so many fragments known to be synced."""
        books = self.keeper.books
        with self._changed:
            counters = counters_of(self.keeper.store, books.next_episode)
        with self._noting:
            shard, shards = books.limits.shard, books.limits.shards
            identity = ShardIdentity(run_id=books.standing.run_id, appended=appended, shard=shard, shards=shards)
            if (identity, counters) != self._noted:
                write_counters(self._directory, counters)
                write_identity(self._directory, identity)
                self._noted = identity, counters
