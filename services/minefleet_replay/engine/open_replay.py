"""Opens a store and rebuilds replay from it.

A store that does not open is set aside, and replay goes on with an empty one: experience expires after a few versions,
so that nothing in it is worth an operation. Counters go on from `counters.json`.
"""

import gc
import logging
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random

from minefleet.core.atomic_files import sync
from minefleet.core.errors import ConfigError, ContractError, CorruptError
from minefleet_replay.engine.counters_file import begin_from, read_counters
from minefleet_replay.engine.memory_state import ReplayState, read_state
from minefleet_replay.engine.metrics import ReplayMetrics
from minefleet_replay.engine.replay import Replay
from minefleet_replay.engine.transaction import TransactionManager
from minefleet_replay.state.chunk_grants import RateLimiter
from minefleet_replay.state.limits import Limits
from minefleet_replay.state.task_curriculum import TaskSampler
from minefleet_replay.storage.identity import FILE, ShardIdentity, read_identity, write_identity
from minefleet_replay.storage.open_rocksdb import has_remains, lock_store, open_store
from minefleet_replay.storage.payload_log import PayloadLog, open_payloads
from minefleet_replay.storage.rocksdb_store import DATABASE, Store
from minefleet_replay.storage.row_codec import LEDGER

logger = logging.getLogger(__name__)

PAYLOADS = "payloads"
"""Their directory, in the store's."""


def open_replay(
    directory: Path,
    limits: Limits,
    metrics: ReplayMetrics,
    *,
    clock: Callable[[], float] = time.monotonic,
    wall_clock: Callable[[], float] = time.time,
    rng: Random | None = None,
    bound: Callable[[str], None] = lambda _: None,
) -> Replay:
    """Opens the store in `directory`, or makes one; also where there is one that is damaged, which is set aside.

    Args:
        directory: Of the store; nobody else's.
        limits: What is allowed.
        metrics: Where to count.
        clock: Seconds, monotonic.
        wall_clock: Seconds since 1970, for records that people read.
        rng: Chooses among chunks.
        bound: Called with the run, now or once a first call has named it.

    Raises:
        ConflictError: If another process has it open.
        CorruptError: If an empty one does not open either.
        ConfigError: If it was made as another shard.
        ContractError: If its fragments have another schema.
    """
    opening = partial(_open, directory, limits, metrics, clock, wall_clock, rng or Random(), bound)
    try:
        replay = opening()
    except CorruptError as error:
        damage = str(error)
    else:
        return replay
    # What the error refers to must be gone: the database stays open as long as any of it lives.
    gc.collect()
    aside = set_aside(directory)
    logger.error(
        "replay goes on with an empty store, for the one in %s does not open: %s. It is kept in %s; remove that when "
        "nobody needs it",
        directory,
        damage,
        aside,
    )
    return opening()


def set_aside(directory: Path) -> Path:
    """Moves a store into a folder of its own, and returns that. `counters.json` stays, for the next store.

    The folder lies within `directory`, which may be the root of a volume and could not be renamed.
    """
    aside = directory / f"broken-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    with closing(lock_store(directory)):
        aside.mkdir()
        # The identity last: without it, what a crash left behind here would pass for a new store.
        for name in (DATABASE, PAYLOADS, FILE):
            if (directory / name).exists():
                (directory / name).rename(aside / name)
        sync(aside)
        sync(directory)
    return aside


def _open(
    directory: Path,
    limits: Limits,
    metrics: ReplayMetrics,
    clock: Callable[[], float],
    wall_clock: Callable[[], float],
    rng: Random,
    bound: Callable[[str], None],
) -> Replay:
    """Opens the store.

    Raises:
        CorruptError: If it is damaged, or has lost what had been synced.
    """
    identity, counters = read_identity(directory), read_counters(directory)
    store = open_store(directory, max_bytes=limits.max_bytes, fresh=identity is None and not has_remains(directory))
    try:
        if identity is None and store.get("system", LEDGER) is None:
            begin_from(counters, store)
        state = read_state(store, limits, clock())
        state.next_episode = max(state.next_episode, counters.next_episode)
        known = identity or identity_of(limits)
        check(directory, known, state)
        payloads = find_payloads(directory, known, state)
        transactions = TransactionManager(store, payloads, state, begin_pacing(state, clock()), metrics, wall_clock)
        if limits.tasks:
            by_success = limits.task_sampling == "success"
            transactions.sampler = TaskSampler(limits.tasks, by_success=by_success, rng=Random(rng.random()))
        transactions.mark_unusable_dead()
        replay = Replay(directory, transactions, clock=clock, rng=rng, bound=bound)
        record_identity(directory, identity, store, state)
    except BaseException:
        store.close()
        raise
    if state.run_state.run_id:
        bound(state.run_state.run_id)
    logger.info("opened %s with %d chunks; %s", directory, len(state.index), state.ledger)
    return replay


def identity_of(limits: Limits) -> ShardIdentity:
    """The identity of a new store."""
    return ShardIdentity(shard=limits.shard, shards=limits.shards)


def check(directory: Path, identity: ShardIdentity, state: ReplayState) -> None:
    """Refuses a store that does not fit its identity or the configuration."""
    run_state, limits = state.run_state, state.limits
    if state.ledger.appended < identity.appended or (identity.run_id and not run_state.run_id):
        raise CorruptError(
            f"{directory} has lost fragments: it knows of {state.ledger.appended}, {identity.appended} had been synced "
            "to disk"
        )
    if (identity.shard, identity.shards) != (limits.shard, limits.shards):
        raise ConfigError(
            f"{directory} is shard {identity.shard} of {identity.shards} (counted from 0), this process is shard "
            f"{limits.shard} of {limits.shards}; neither can change within a run: give every shard its own store again"
        )
    if run_state.run_id and run_state.schema != limits.schema_fingerprint:
        raise ContractError(
            f"{directory} holds fragments of schema {run_state.schema}, run {run_state.run_id} now has "
            f"{limits.schema_fingerprint}"
        )


def find_payloads(directory: Path, identity: ShardIdentity, state: ReplayState) -> PayloadLog:
    """Finds the payloads of all fragments.

    Those that power loss took, in its window, are found missing when they are read, and counted as corrupt.

    Raises:
        CorruptError: If payloads are missing that had been synced.
    """
    payloads = open_payloads(directory / PAYLOADS, file_bytes=state.limits.budget.file_bytes)
    for chunk in state.index:
        for fragment in chunk.fragments:
            is_there = fragment.corrupt or payloads.holds(fragment.place, fragment.payload_bytes)
            if fragment.number < identity.appended and not is_there:
                raise CorruptError(
                    f"{payloads.path(fragment.place.file)} is missing or too short: fragment {chunk.name.stream}/"
                    f"{fragment.sequence} lies in it"
                )
            payloads.hold(fragment.place.file)
    return payloads


def begin_pacing(state: ReplayState, now: float) -> RateLimiter:
    """Incomplete chunks get the time of a grant to go on; grants themselves are asked for again by their streams."""
    limits = state.limits
    pacing = RateLimiter(
        capacity_steps=limits.capacity_steps, grant_timeout_s=limits.grant_timeout_s, enabled=limits.paced
    )
    for chunk in state.index:
        if not chunk.whole:
            pacing.begin(chunk.name, 0, max(0, limits.chunk_steps - chunk.steps), now)
    return pacing


def record_identity(directory: Path, identity: ShardIdentity | None, store: Store, state: ReplayState) -> None:
    """Writes the store's identity outside RocksDB, once that is durable inside."""
    if identity is None or identity.run_id != state.run_state.run_id:
        store.sync(store.written)
        write_identity(directory, replace(identity or identity_of(state.limits), run_id=state.run_state.run_id))
