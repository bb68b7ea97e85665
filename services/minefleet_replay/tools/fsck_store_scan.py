"""All that a store holds, as far as it can be read; and, for each thing that cannot, a fault."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from struct import error as StructError  # noqa: N812  # It is a class.
from typing import TypeVar, cast

import xxhash
from google.protobuf.message import DecodeError

from minefleet.core.errors import CorruptError
from minefleet.v1 import episode_pb2, fragment_pb2
from minefleet_replay.engine.latest_drops import read_drop
from minefleet_replay.state.actor_step_totals import ActorCounts
from minefleet_replay.state.chunk import Chunk
from minefleet_replay.state.deduplication import ChunkName, StreamNames
from minefleet_replay.state.lease_table import LeaseTable, read_rows
from minefleet_replay.state.ledger_totals import Amount, Bucket, Ledger, Reason, bucket_of
from minefleet_replay.state.run_state import RunState
from minefleet_replay.storage.payload_log import PayloadLog
from minefleet_replay.storage.rocksdb_store import Family, Store
from minefleet_replay.storage.row_codec import (
    ACTOR,
    GONE_ACTORS,
    LEDGER,
    RUN_STATE,
    UNEXPLAINED,
    FragmentRow,
    number_of,
    read_names,
    read_uses,
)

EXAMPLES = 10
"""Faults of one kind that are listed one by one."""

UNREADABLE = (CorruptError, DecodeError, StructError, ValueError, TypeError, KeyError, AttributeError)
"""Errors of parsing a rotten row."""

Parsed = TypeVar("Parsed")


class Faults:
    """Faults of a store, by kind."""

    def __init__(self) -> None:
        self._kinds: dict[str, list[str]] = defaultdict(list)
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._counts.total()

    def add(self, kind: str, text: str) -> None:
        """Adds one."""
        self._counts[kind] += 1
        if len(self._kinds[kind]) < EXAMPLES:
            self._kinds[kind].append(text)

    def lines(self) -> list[str]:
        """Some of each kind, and how many more there are."""
        lines = []
        for kind, texts in self._kinds.items():
            lines += [f"{kind}: {text}" for text in texts]
            more = self._counts[kind] - len(texts)
            lines += [f"{kind}: and {more} more"] if more else []
        return lines


@dataclass(slots=True)
class StoreContents:
    """The rows, parsed."""

    store: Store
    faults: Faults = field(default_factory=Faults)
    metas: dict[int, FragmentRow] = field(default_factory=dict)
    """By append number; without headers."""
    chunks: dict[int, Chunk] = field(default_factory=dict)
    """By id, the oldest first."""
    rotten: set[int] = field(default_factory=set)
    """Numbers of fragments, not quarantined yet, whose payload is not what was appended."""
    uses: dict[int, int] = field(default_factory=dict)
    leases: LeaseTable = field(default_factory=LeaseTable)
    names: dict[str, StreamNames] = field(default_factory=dict)
    episodes: dict[str, int] = field(default_factory=dict)
    """The highest episode of each stream in the episode log."""
    explained: Counter[Bucket] = field(default_factory=Counter)
    """Fragments that left, by the records of why."""
    explained_steps: Counter[Bucket] = field(default_factory=Counter)
    """Their steps."""
    last_number: int = -1
    """The highest append number in any row."""
    ledger: Ledger | None = None
    run_state: RunState | None = None
    unexplained: int = 0
    unreadable: set[Family] = field(default_factory=set)
    """Families of which rows cannot be read, or not parsed."""

    @property
    def leased(self) -> Counter[int]:
        """Open leases of each chunk."""
        return Counter(chunk_id for lease in self.leases.open.values() for chunk_id, _ in lease.chunks)

    def granted_reuse(self, chunk_id: int) -> int:
        """The largest `max_reuse` under which an open lease got a chunk."""
        held = (lease.max_reuse for lease in self.leases.open.values() if chunk_id in dict(lease.chunks))
        return max(held, default=0)


def read_contents(store: Store, payloads: PayloadLog) -> StoreContents:
    """Reads and parses every row, and checks every payload."""
    contents = StoreContents(store)
    _read_system(contents)
    _read_fragments(contents)
    _read_payloads(contents, payloads)
    contents.uses = {number_of(key): uses for key, uses in _parsed(contents, "uses", lambda _, row: read_uses(row))}
    _read_leases(contents)
    names = _parsed(contents, "names", lambda key, row: (key.decode(), read_names(row)))
    contents.names = {stream: known for _, (stream, known) in names}
    _read_records(contents)
    return contents


def _parsed(
    contents: StoreContents, family: Family, parse: Callable[[bytes, bytes], Parsed]
) -> Iterator[tuple[bytes, Parsed]]:
    """Yields what the rows of a family mean, by key, as far as they can be read."""
    try:
        for key, row in contents.store.scan(family):
            try:
                value = parse(key, row)
            except UNREADABLE as error:
                contents.unreadable.add(family)
                contents.faults.add("unreadable row", f"family {family}, key {key.hex()}: {error!r}")
            else:
                yield key, value
    except CorruptError as error:
        contents.unreadable.add(family)
        contents.faults.add("unreadable block", f"family {family}: {error}")


def _read_fragments(contents: StoreContents) -> None:
    by_name: dict[ChunkName, Chunk] = {}
    for _, meta in _parsed(contents, "meta", _read_meta):
        number = meta.fragment.number
        name = ChunkName(meta.stream, meta.fragment.chunk)
        if name not in by_name:
            by_name[name] = contents.chunks[number] = Chunk(name, number)
        by_name[name].fragments.append(meta.fragment)
        contents.metas[number] = meta
        contents.last_number = max(contents.last_number, number)


def _read_meta(key: bytes, row: bytes) -> FragmentRow:
    """Reads a row of `meta` and verifies that its header says the same.

    Raises:
        CorruptError: If it does not.
    """
    meta = FragmentRow.from_row(number_of(key), row)
    if not meta.fragment.corrupt:
        header = fragment_pb2.FragmentHeader.FromString(meta.header)
        if replace(FragmentRow.of(number_of(key), header, meta.fragment.place), header=meta.header) != meta:
            raise CorruptError(f"fragment {meta.stream}/{meta.fragment.sequence} and its header differ")
    return replace(meta, header=b"")


def _read_payloads(contents: StoreContents, payloads: PayloadLog) -> None:
    for number, meta in contents.metas.items():
        if meta.fragment.corrupt:
            continue
        try:
            check_payload(payloads, meta)
        except CorruptError as error:
            contents.rotten.add(number)
            contents.faults.add("payload", f"fragment {meta.stream}/{meta.fragment.sequence}, number {number}: {error}")


def check_payload(payloads: PayloadLog, meta: FragmentRow) -> None:
    """Reads a payload.

    Raises:
        CorruptError: If it is not what was appended.
    """
    digest, place = xxhash.xxh3_64(), meta.fragment.place
    pieces = payloads.read(place, meta.fragment.payload_bytes)
    if sum(map(len, pieces)) < meta.fragment.payload_bytes:
        raise CorruptError(f"its place lies outside {payloads.path(place.file)}")
    for piece in pieces:
        digest.update(piece)
    if digest.intdigest() != meta.checksum:
        raise CorruptError("its bytes are not what was appended")


def _read_leases(contents: StoreContents) -> None:
    for _, leases in _parsed(contents, "leases", lambda key, row: read_rows({number_of(key): row})):
        contents.leases.open.update(leases.open)
        contents.leases.closed.update(leases.closed)


def _read_records(contents: StoreContents) -> None:
    for _, record in _parsed(contents, "episodes", lambda _, row: episode_pb2.EpisodeRecord.FromString(row)):
        contents.episodes[record.stream] = max(record.episode, contents.episodes.get(record.stream, 0))
    for key, (bucket, amount) in _parsed(contents, "drops", _read_drop):
        contents.explained[bucket] += amount.fragments
        contents.explained_steps[bucket] += amount.steps
        contents.last_number = max(contents.last_number, number_of(key))


def _read_drop(_: bytes, row: bytes) -> tuple[Bucket, Amount]:
    """The bucket that a departure went to, and what left."""
    departure = read_drop(row)
    return bucket_of(cast(Reason, departure.reason), departure.uses), Amount(len(departure.sequences), departure.steps)


def _read_system(contents: StoreContents) -> None:
    for _, value in _parsed(contents, "system", _read_system_row):
        if isinstance(value, Ledger):
            contents.ledger = value
        elif isinstance(value, RunState):
            contents.run_state = value
        elif isinstance(value, int):
            contents.unexplained = value


def _read_system_row(key: bytes, row: bytes) -> Ledger | RunState | ActorCounts | int:
    if key == LEDGER:
        return Ledger.from_row(row)
    if key == RUN_STATE:
        return RunState.from_row(row)
    if key == UNEXPLAINED:
        return number_of(row)
    if key == GONE_ACTORS or key.startswith(ACTOR):
        return ActorCounts.from_row(row)
    raise CorruptError("nothing has this key")
