"""What a stopped replay left on the disk, read row by row and without its memory."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.history.history import Name

from minefleet.codec import checksum
from minefleet.v1 import episode_pb2
from minefleet_replay.audit import recount
from minefleet_replay.leases import read_rows
from minefleet_replay.ledger import Ledger, bucket_of
from minefleet_replay.opening import PAYLOADS
from minefleet_replay.payloads import open_payloads
from minefleet_replay.progress import Counts
from minefleet_replay.rows import ACTOR, AFTER_ACTORS, STANDING, Meta, number_of, read_names, read_uses
from minefleet_replay.standing import Standing
from minefleet_replay.store import Store, open_store


@dataclass(frozen=True, kw_only=True, slots=True)
class Drop:
    """Why a fragment left."""

    reason: Any
    uses: int
    oldest_version: int


@dataclass(kw_only=True, slots=True)
class Survey:
    """The store in plain data."""

    ledger: dict[str, int] = field(default_factory=lambda: Ledger().figures())
    faults: list[str] = field(default_factory=list)
    """What does not add up between the ledger and the rows."""
    epoch: int = 0
    newest_version: int = 0
    named: set[Name] = field(default_factory=set)
    """Every fragment that a stream remembers."""
    held: dict[Name, str] = field(default_factory=dict)
    """The digest of every stored fragment's bytes."""
    dropped: dict[Name, Drop] = field(default_factory=dict)
    uses: dict[Name, int] = field(default_factory=dict)
    """Acked uses of stored chunks."""
    leases: dict[int, list[Name]] = field(default_factory=dict)
    """Chunks of the open leases."""
    episodes: list[Name] = field(default_factory=list)
    """The episode log."""
    env_steps: dict[str, int] = field(default_factory=dict)
    """By actor incarnation."""


def digest_of(payload: bytes) -> str:
    return f"{checksum(payload):016x}"


def faults_in(directory: Path, fragments_per_chunk: int) -> list[str]:
    """What does not add up, and what is not whole, in a store that nobody has open."""
    with _opened(directory) as store:
        counted = recount(store, fragments_per_chunk)
        return [*counted.faults(), *_torn(_metas(store), directory)]


def survey(directory: Path, fragments_per_chunk: int) -> Survey:
    """Reads a store that nobody has open."""
    with _opened(directory) as store:
        return _survey(store, directory, fragments_per_chunk)


@contextmanager
def _opened(directory: Path) -> Iterator[Store]:
    store = open_store(directory, max_bytes=2**26, fresh=False)
    try:
        yield store
    finally:
        store.close()


def _survey(store: Store, directory: Path, fragments_per_chunk: int) -> Survey:
    standing = Standing.from_row(store.get("system", STANDING) or b"")
    metas = _metas(store)
    chunk_of = {meta.fragment.number: (meta.stream, meta.fragment.sequence // fragments_per_chunk) for meta in metas}
    open_leases = read_rows({number_of(key): row for key, row in store.scan("leases")}).open
    counted, dropped = recount(store, fragments_per_chunk), dict(_dropped(store))
    return Survey(
        ledger=counted.ledger.figures(),
        faults=[*counted.faults(), *_miscounted(counted.ledger, dropped)],
        epoch=standing.epoch,
        newest_version=standing.newest_version,
        named=set(_named(store)),
        held={(meta.stream, meta.fragment.sequence): digest for meta, digest in _digests(metas, directory)},
        dropped=dropped,
        uses={chunk_of[number_of(key)]: read_uses(row) for key, row in store.scan("uses")},
        leases={number: [chunk_of[chunk] for chunk, _ in lease.chunks] for number, lease in open_leases.items()},
        episodes=list(_episodes(store)),
        env_steps={
            key.removeprefix(ACTOR).decode(): Counts.from_row(row).env_steps
            for key, row in store.scan("system", ACTOR, AFTER_ACTORS)
        },
    )


def _metas(store: Store) -> list[Meta]:
    return [Meta.from_row(number_of(key), row) for key, row in store.scan("meta")]


def _digests(metas: list[Meta], directory: Path) -> Iterator[tuple[Meta, str]]:
    """What is on the disk of each fragment."""
    payloads = open_payloads(directory / PAYLOADS, file_bytes=1)
    for meta in metas:
        yield meta, digest_of(b"".join(payloads.read(meta.fragment.place, meta.fragment.payload_bytes)))


def _torn(metas: list[Meta], directory: Path) -> Iterator[str]:
    for meta, digest in _digests(metas, directory):
        if digest != f"{meta.checksum:016x}":
            yield f"{meta.stream}/{meta.fragment.sequence} has the bytes {digest}, it was sent as {meta.checksum:016x}"


def _named(store: Store) -> Iterator[Name]:
    for key, row in store.scan("names"):
        for low, high in read_names(row).fragments:
            yield from ((key.decode(), sequence) for sequence in range(low, high))


def _dropped(store: Store) -> Iterator[tuple[Name, Drop]]:
    for _, row in store.scan("drops"):
        data = json.loads(row)
        for sequence in data["sequences"]:
            drop = Drop(reason=data["reason"], uses=data["uses"], oldest_version=data["oldest_version"])
            yield (data["stream"], sequence), drop


def _episodes(store: Store) -> Iterator[Name]:
    for _, row in store.scan("episodes"):
        record = episode_pb2.EpisodeRecord.FromString(row)
        yield record.stream, record.episode


def _miscounted(ledger: Ledger, dropped: dict[Name, Drop]) -> Iterator[str]:
    """Buckets of what has left, recounted from the reasons. No fragment is corrupt here, none is forgotten."""
    left = Counter(bucket_of(drop.reason, drop.uses) for drop in dropped.values())
    for bucket in ("trained", "expired", "evicted", "corrupt"):
        counted = ledger.figures()[bucket]
        if counted != left[bucket]:
            yield f"the ledger counts {counted} fragments as {bucket}, the reasons say {left[bucket]}"
