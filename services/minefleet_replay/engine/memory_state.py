"""All that replay keeps in memory, and how it is read back from the store."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from struct import error as StructError  # noqa: N812  # It is a class.

from minefleet.core.errors import CorruptError
from minefleet_replay.state.actor_step_totals import ActorCounts, ActorProgress
from minefleet_replay.state.chunk import Chunk, FragmentEntry
from minefleet_replay.state.deduplication import ChunkName, ChunkNames
from minefleet_replay.state.index import Index
from minefleet_replay.state.lease_table import LeaseTable, read_rows
from minefleet_replay.state.ledger_totals import Ledger
from minefleet_replay.state.limits import Limits
from minefleet_replay.state.run_state import RunState
from minefleet_replay.storage.rocksdb_store import Store
from minefleet_replay.storage.row_codec import (
    ACTOR,
    END_OF_ACTORS,
    GONE_ACTORS,
    LEDGER,
    RUN_STATE,
    number_of,
    read_fragment,
    read_names,
    read_uses,
)


@dataclass(slots=True)
class ReplayState:
    """The memory. Every change of it follows rows that are written."""

    limits: Limits
    index: Index
    names: ChunkNames
    leases: LeaseTable
    progress: ActorProgress
    run_state: RunState
    ledger: Ledger
    next_episode: int
    horizon: int
    """The newest version that any use is meant for: reported, or named by a lease."""

    @property
    def oldest_version(self) -> int:
        """The oldest version that can be used again. It falls only where a newer epoch takes over."""
        return max(self.horizon - self.limits.max_staleness, self.run_state.floor)

    def forget_uses_to_come(self) -> None:
        """Uses are for versions after the newest one again: leases of an older epoch may have named later ones."""
        self.horizon = self.run_state.newest_version

    def is_begun(self, name: ChunkName) -> bool:
        """Whether a fragment of the chunk has ever arrived."""
        return self.names[name.stream].knows_chunk(name.number)

    def is_stale(self, oldest_version: int) -> bool:
        """Whether what a version acted in can never be used again."""
        return oldest_version < self.oldest_version

    def is_abandoned(self, chunk: Chunk) -> bool:
        """Whether versions of an abandoned lineage may have acted in it."""
        return self.run_state.is_abandoned(chunk.oldest_version, chunk.newest_version)

    def stats(self) -> dict[str, int]:
        """Statistics of what is held, and totals."""
        return {
            **self.ledger.stats(),
            "held_chunks": len(self.index),
            "held_steps": self.index.steps,
            "held_payload_bytes": self.index.payload_bytes,
            "open_leases": len(self.leases.open),
            "known_streams": len(self.names),
            **self.index.stats(),
            "newest_version": self.run_state.newest_version,
            "epoch": self.run_state.epoch,
            "env_steps": self.progress.total.env_steps,
            "env_failures": self.progress.total.env_failures,
        }

    def held_files(self) -> set[int]:
        """Files in which payloads of leased chunks lie."""
        leased = (self.index[chunk_id] for lease in self.leases.open.values() for chunk_id, _ in lease.chunks)
        return {fragment.place.file for chunk in leased for fragment in chunk.fragments}

    def abandoned(self) -> list[Chunk]:
        """Unleased chunks in which versions of an abandoned lineage may have acted."""
        return [chunk for chunk in self.index.unleased() if self.is_abandoned(chunk)]


def read_state(store: Store, limits: Limits, now: float = 0.0) -> ReplayState:
    """Rebuilds the memory from the store.

    Args:
        store: The store.
        limits: Those of the run; the store knows live changes of them.
        now: When the chunks count as begun, by replay's clock.

    Raises:
        CorruptError: If rows contradict each other.
    """
    try:
        return _read_state(store, limits, now)
    except (KeyError, ValueError, StructError) as error:
        raise CorruptError(f"the store's rows contradict each other: {error!r}") from error


def _read_state(store: Store, limits: Limits, now: float) -> ReplayState:
    run_state_row, ledger_row = store.get("system", RUN_STATE), store.get("system", LEDGER)
    run_state = RunState.from_row(run_state_row) if run_state_row else RunState()
    limits = replace(limits, **run_state.live)
    leases = read_rows({number_of(key): row for key, row in store.scan("leases")})
    last_episode = store.last_key("episodes")
    return ReplayState(
        limits=limits,
        index=_read_index(store, limits, leases, now),
        names=ChunkNames({key.decode(): read_names(row) for key, row in store.scan("names")}, limits.streams_kept),
        leases=leases,
        progress=_read_progress(store),
        run_state=run_state,
        ledger=Ledger.from_row(ledger_row) if ledger_row else Ledger(),
        next_episode=number_of(last_episode) + 1 if last_episode else 0,
        horizon=max([run_state.newest_version, *(lease.use_version for lease in leases.open.values())]),
    )


def _read_index(store: Store, limits: Limits, leases: LeaseTable, now: float) -> Index:
    index = Index(max_reuse=limits.max_reuse)
    uses = {number_of(key): read_uses(row) for key, row in store.scan("uses")}
    leased = Counter(chunk_id for lease in leases.open.values() for chunk_id, _ in lease.chunks)
    index.load(_fragments(store), uses, leased, now)
    return index


def _fragments(store: Store) -> Iterator[tuple[ChunkName, FragmentEntry]]:
    streams: dict[str, str] = {}
    for key, row in store.scan("meta"):
        stream, fragment = read_fragment(number_of(key), row)
        # One string per stream, however many names hold it.
        stream = streams.setdefault(stream, stream)
        yield ChunkName(stream, fragment.chunk), fragment


def _read_progress(store: Store) -> ActorProgress:
    actors = {key.removeprefix(ACTOR).decode(): row for key, row in store.scan("system", ACTOR, END_OF_ACTORS)}
    gone = store.get("system", GONE_ACTORS)
    return ActorProgress(
        {actor: ActorCounts.from_row(row) for actor, row in actors.items()},
        ActorCounts.from_row(gone) if gone else ActorCounts(),
    )
