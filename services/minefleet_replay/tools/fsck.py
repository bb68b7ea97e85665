"""Verifies a store: every row, every payload, what rows say of each other, and the ledger against all of them."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from minefleet.core.errors import CorruptError
from minefleet_replay.engine.open_replay import PAYLOADS, identity_of
from minefleet_replay.state.chunk import Chunk
from minefleet_replay.state.deduplication import MAX_STREAMS, NOTHING
from minefleet_replay.state.ledger_totals import Amount, Bucket, Ledger
from minefleet_replay.state.limits import Limits
from minefleet_replay.storage.identity import FILE, ShardIdentity, read_identity
from minefleet_replay.storage.rocksdb_store import DATABASE
from minefleet_replay.tools.fsck_store_scan import Faults, StoreContents, read_contents
from minefleet_replay.tools.offline_store import looking, payloads_in

DEPARTED: tuple[Bucket, ...] = ("trained", "expired", "evicted")
DROPPED_BUCKETS: tuple[Bucket, ...] = (*DEPARTED, "corrupt")


@dataclass(frozen=True, slots=True)
class Recount:
    """The sums of the rows."""

    ledger: Ledger
    """As it was written."""
    named: int
    """Names that streams remember: every fragment ever appended, while no stream is forgotten."""
    live: Amount
    leased: Amount
    quarantined: Amount
    """The corrupt fragments that are still stored."""

    def faults(self) -> Iterator[str]:
        """The sums that do not agree."""
        if not self.ledger.is_balanced:
            yield f"the buckets do not add up: {self.ledger}"
        if self.named > self.ledger.appended:
            yield f"streams name {self.named} fragments, {self.ledger.appended} were appended"
        for unit, account in self.ledger._asdict().items():
            live, leased, quarantined = (getattr(one, unit) for one in (self.live, self.leased, self.quarantined))
            for bucket, counted, recounted in (("live", account.live, live), ("leased", account.leased, leased)):
                if counted != recounted:
                    yield f"the ledger counts {counted} {unit} as {bucket}, the rows hold {recounted}"
            if quarantined > account.corrupt:
                yield f"{quarantined} {unit} are quarantined, the ledger counts {account.corrupt} as corrupt"


def fsck(directory: Path, limits: Limits) -> dict[str, Any]:
    """Verifies a store that is locked, and changes nothing. Returns a report."""
    faults = Faults()
    try:
        with looking(directory / DATABASE, limits.max_bytes) as store:
            contents = read_contents(store, payloads_in(directory))
    except CorruptError as error:
        known_identity(directory, limits, faults)
        faults.add("database", f"it does not open: {error}")
        return {"faults": faults.lines(), "ledger": None, "recount": None, "unnamed_payload_files": []}
    check(contents, known_identity(directory, limits, contents.faults), limits)
    ledger = contents.ledger
    recount = asdict(recount_of(contents, ledger or Ledger()))
    del recount["ledger"]
    return {
        "faults": contents.faults.lines(),
        "ledger": ledger.stats() if ledger is not None else None,
        "recount": recount | {"departed": dict(contents.explained), "departed_steps": dict(contents.explained_steps)},
        "unnamed_payload_files": unnamed(contents, directory),
    }


def unnamed(contents: StoreContents, directory: Path) -> list[str]:
    """Files of payloads in which no fragment lies. They are no fault: replay removes them when it runs."""
    payloads = payloads_in(directory)
    named = {payloads.path(meta.fragment.place.file).name for meta in contents.metas.values()}
    return sorted(path.name for path in (directory / PAYLOADS).glob("*") if path.name not in named)


def known_identity(directory: Path, limits: Limits, faults: Faults) -> ShardIdentity:
    """The identity that lies beside the database, or that of a new store where that is a fault."""
    try:
        identity = read_identity(directory)
    except CorruptError as error:
        faults.add("identity", str(error))
        return identity_of(limits)
    if identity is None:
        faults.add("identity", f"{directory / FILE} is missing")
    return identity or identity_of(limits)


def check(contents: StoreContents, identity: ShardIdentity, limits: Limits) -> None:
    """Adds the faults between rows to those of the rows themselves."""
    faults, run_state = contents.faults, contents.run_state
    limits = replace(limits, **run_state.live) if run_state is not None else limits
    for chunk in contents.chunks.values():
        for text in (*chunk_faults(contents, chunk, limits), *name_faults(contents, chunk)):
            faults.add("chunk", f"{chunk.name.stream}/{chunk.name.number}, id {chunk.id}: {text}")
    for chunk_id in contents.uses.keys() - contents.chunks.keys():
        faults.add("uses", f"chunk {chunk_id} has uses and is not stored")
    for chunk_id in contents.leased.keys() - contents.chunks.keys():
        faults.add("lease", f"chunk {chunk_id} is leased and not stored")
    for text in ledger_faults(contents, identity, limits):
        faults.add("ledger", text)


def chunk_faults(contents: StoreContents, chunk: Chunk, limits: Limits) -> Iterator[str]:
    """Faults that make a chunk unusable, other than its bytes."""
    charge = contents.uses.get(chunk.id, 0) + contents.leased[chunk.id]
    if charge > limits.max_reuse and charge > contents.granted_reuse(chunk.id):
        yield f"it is charged with {charge} uses, max_reuse is {limits.max_reuse}"
    sequences = [fragment.sequence for fragment in chunk.fragments]
    if len(set(sequences)) < len(sequences):
        yield f"it holds fragments twice: {sequences}"
    if len({fragment.chunk_start for fragment in chunk.fragments}) > 1:
        yield "its fragments do not agree where it begins"
    names = contents.names.get(chunk.name.stream, NOTHING)
    last = max(chunk.fragments)
    expected = range(last.chunk_start, last.sequence + 1 + (not last.closes_chunk))
    missing = [one for one in expected if one not in sequences and names.knows_sequence(one)]
    if missing:
        yield f"fragments {missing} of it are missing"


def name_faults(contents: StoreContents, chunk: Chunk) -> Iterator[str]:
    """Names that a chunk's stream lacks."""
    names = contents.names.get(chunk.name.stream, NOTHING)
    unknown = [one.sequence for one in chunk.fragments if not names.knows_sequence(one.sequence)]
    is_forgotten = chunk.name.stream not in contents.names and len(contents.names) >= MAX_STREAMS
    if unknown and not is_forgotten:
        yield f"its stream does not know its fragments {unknown}"


def ledger_faults(contents: StoreContents, identity: ShardIdentity, limits: Limits) -> Iterator[str]:
    """Disagreements between the ledger, the rows and the synced counters."""
    ledger = contents.ledger
    if ledger is None:
        if contents.last_number >= 0 or identity.appended:
            yield "there is none"
        return
    if ledger.appended < identity.appended:
        yield f"it counts {ledger.appended} appended fragments, {identity.appended} had been synced to disk"
    if contents.last_number >= ledger.appended:
        yield f"it counts {ledger.appended} appended fragments, there are rows of number {contents.last_number}"
    if identity.run_id and contents.run_state is None:
        yield f"the row that says where run {identity.run_id} stands is missing"
    yield from recount_of(contents, ledger).faults()
    if remembers_all(contents, ledger, limits):
        left = sum(getattr(ledger.fragments, bucket) for bucket in DROPPED_BUCKETS) - quarantined_of(contents).fragments
        explained = contents.explained.total() + contents.unexplained
        if left != explained:
            yield f"it counts {left} fragments that left, there are records of {explained}"
        left_steps = sum(getattr(ledger.steps, bucket) for bucket in DROPPED_BUCKETS) - quarantined_of(contents).steps
        if left_steps != contents.explained_steps.total() and not contents.unexplained:
            yield f"it counts {left_steps} steps that left, there are records of {contents.explained_steps.total()}"
    yield from overcounted(contents, ledger, limits)


def recount_of(contents: StoreContents, ledger: Ledger) -> Recount:
    """The buckets, counted by the rows."""
    leased = contents.leased
    return Recount(
        ledger=ledger,
        named=sum(high - low for names in contents.names.values() for low, high in names.fragments),
        live=total(chunk.sound for chunk in contents.chunks.values() if not leased[chunk.id]),
        leased=total(chunk.sound for chunk in contents.chunks.values() if leased[chunk.id]),
        quarantined=quarantined_of(contents),
    )


def quarantined_of(contents: StoreContents) -> Amount:
    """The corrupt fragments that are still stored."""
    return total(Amount(1, meta.fragment.steps) for meta in contents.metas.values() if meta.fragment.corrupt)


def total(amounts: Iterable[Amount]) -> Amount:
    """The sum of amounts."""
    return Amount(*map(sum, zip((0, 0), *amounts, strict=True)))


def remembers_all(contents: StoreContents, ledger: Ledger, limits: Limits) -> bool:
    """Whether no record of why fragments left has been forgotten or lost."""
    return ledger.appended <= limits.drops_kept and "drops" not in contents.unreadable


def overcounted(contents: StoreContents, ledger: Ledger, limits: Limits) -> Iterator[str]:
    """The buckets that count more than records say.

    Records may say more: a quarantined fragment leaves with its chunk and for its reason, and is counted as corrupt.
    """
    for bucket in DEPARTED if remembers_all(contents, ledger, limits) else ():
        counted, recorded = getattr(ledger.fragments, bucket), contents.explained[bucket]
        if counted > recorded + contents.unexplained:
            yield f"it counts {counted} fragments as {bucket}, there are records of {recorded}"
