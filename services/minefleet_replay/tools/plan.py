"""Decides what of a damaged store can be kept, so that no use is forgotten and the ledger adds up.

A chunk is kept when all of it is sound. One that is leased and has lost only bytes is kept too, with those quarantined:
its learner may be at work on it. All others leave as corrupt, or as trained if they were ever used.

What is known of uses must be certain. Where a lease or the standing of the run is lost, no chunk is kept: any of them
might have been used more often than the rows say.
"""

from dataclasses import dataclass, field, replace

from minefleet_replay.identity import Identity
from minefleet_replay.leases import Lease
from minefleet_replay.ledger import Ledger
from minefleet_replay.limits import Limits
from minefleet_replay.names import NOTHING, WINDOW, StreamNames
from minefleet_replay.rows import Meta
from minefleet_replay.standing import Standing
from minefleet_replay.tools.contents import Contents, Held
from minefleet_replay.tools.fsck import DEPARTED, chunk_faults, name_faults, overcounted


@dataclass(slots=True)
class Plan:
    """What the mended store shall hold."""

    kept: set[int] = field(default_factory=set)
    """Append numbers."""
    quarantined: set[int] = field(default_factory=set)
    """Of those kept, the ones whose bytes are lost."""
    dropped: list[Held] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    """Open leases, without the chunks that are dropped."""
    names: dict[str, StreamNames] = field(default_factory=dict)
    """Streams whose names are made anew."""
    standing: Standing | None = None
    ledger: Ledger = field(default_factory=Ledger)
    unexplained: int = 0


def make_plan(contents: Contents, identity: Identity, limits: Limits, *, is_whole: bool) -> Plan:
    """Decides.

    Args:
        contents: Of the damaged store.
        identity: What is known of it outside RocksDB.
        limits: Of the run.
        is_whole: Whether the database opened without passing over any of its log.
    """
    plan = Plan(standing=contents.standing or _standing(contents, identity, limits))
    is_certain = not _may_have_lost_charges(contents, identity, is_whole)
    for chunk in contents.chunks.values():
        if is_certain and not _is_lost(contents, chunk, limits):
            plan.kept.update(fragment.number for fragment in chunk.fragments)
        else:
            plan.dropped.append(chunk)
    plan.quarantined = plan.kept & contents.rotten
    for lease in contents.leases.open.values():
        chunks = tuple(pair for pair in lease.chunks if pair[0] in plan.kept)
        plan.leases.append(replace(lease, chunks=chunks))
    plan.names = _names(contents)
    plan.ledger = _ledger(contents, plan, identity, limits)
    plan.unexplained = _left(contents, plan) - _explained(contents, plan)
    return plan


def quarantined(contents: Contents, plan: Plan) -> int:
    """Fragments that are corrupt and kept with their chunk."""
    return sum(contents.metas[number].fragment.corrupt or number in plan.quarantined for number in plan.kept)


def _may_have_lost_charges(contents: Contents, identity: Identity, is_whole: bool) -> bool:
    """Whether a chunk may have been used, or be in use, without a row that says so."""
    ledger = contents.ledger
    if ledger is None or (identity.run_id and contents.standing is None):
        return True
    if is_whole and not contents.has_lost("leases"):
        return False
    held = sum(chunk.sound for chunk in contents.chunks.values())
    leased = sum(chunk.sound for chunk in contents.chunks.values() if contents.leased[chunk.id])
    have_returned = held + ledger.trained + ledger.expired + ledger.evicted > ledger.appended
    return leased != ledger.leased or have_returned


def _is_lost(contents: Contents, chunk: Held, limits: Limits) -> bool:
    """Whether a chunk cannot be kept."""
    has_lost_uses = chunk.id not in contents.uses and contents.may_have_lost("uses", chunk.id)
    has_lost_bytes = any(fragment.number in contents.rotten for fragment in chunk.fragments)
    is_broken = has_lost_uses or any(chunk_faults(contents, chunk, limits))
    return is_broken or (has_lost_bytes and not contents.leased[chunk.id])


def _standing(contents: Contents, identity: Identity, limits: Limits) -> Standing | None:
    """Where the run stands, as far as it is known without the row that says so."""
    if not identity.run_id:
        return None
    versions = [meta.fragment.newest_version for meta in contents.metas.values()]
    return Standing(
        run_id=identity.run_id,
        schema=limits.schema_fingerprint,
        fragments_per_chunk=contents.fragments_per_chunk,
        newest_version=max(versions, default=0),
    )


def _names(contents: Contents) -> dict[str, StreamNames]:
    """New names for streams that lack some: all up to the highest that is stored, so that none is taken in again."""
    lacking = {chunk.name.stream for chunk in contents.chunks.values() if any(name_faults(contents, chunk))}
    by_stream: dict[str, list[Meta]] = {stream: [] for stream in lacking}
    for meta in contents.metas.values():
        if meta.stream in lacking:
            by_stream[meta.stream].append(meta)
    return {stream: _renamed(contents, stream, metas) for stream, metas in by_stream.items()}


def _renamed(contents: Contents, stream: str, metas: list[Meta]) -> StreamNames:
    known = contents.names.get(stream, NOTHING)
    stop = max(meta.fragment.sequence + 1 for meta in metas)
    fragments = ((0, max([stop, *(high for _, high in known.fragments)])),)
    episodes = known.episodes or (((0, contents.episodes[stream] + 1),) if stream in contents.episodes else ())
    sound = [(meta.fragment.sequence, meta.checksum) for meta in metas if not meta.fragment.corrupt]
    heard = max(known.heard, metas[-1].fragment.number)
    return StreamNames(fragments, episodes, known.checksums or tuple(sound[-WINDOW:]), heard)


def _ledger(contents: Contents, plan: Plan, identity: Identity, limits: Limits) -> Ledger:
    """A ledger that adds up: what was appended and is nowhere else counts as corrupt."""
    known = contents.ledger or Ledger()
    if contents.ledger is None or any(overcounted(contents, known, limits)):
        known = known._replace(**{bucket: contents.explained[bucket] for bucket in DEPARTED})
    sound = {number for number in plan.kept if not contents.metas[number].fragment.corrupt} - plan.quarantined
    chunks = [chunk for chunk in contents.chunks.values() if chunk.id in plan.kept and contents.leased[chunk.id]]
    leased = sum(fragment.number in sound for chunk in chunks for fragment in chunk.fragments)
    trained = known.trained + sum(chunk.sound for chunk in plan.dropped if contents.uses.get(chunk.id))
    elsewhere = len(sound) + trained + known.expired + known.evicted
    names = (contents.names | plan.names).values()
    named = sum(high - low for stream in names for low, high in stream.fragments)
    appended = max(known.appended, identity.appended, contents.last_number + 1, named)
    unrecorded = _explained(contents, plan) - (trained + known.expired + known.evicted)
    corrupt = max(appended - elsewhere, quarantined(contents, plan) + max(unrecorded, 0))
    return known._replace(
        appended=elsewhere + corrupt, live=len(sound) - leased, leased=leased, trained=trained, corrupt=corrupt
    )


def _left(contents: Contents, plan: Plan) -> int:
    """Fragments that have left, by the new ledger."""
    ledger = plan.ledger
    return ledger.appended - ledger.live - ledger.leased - quarantined(contents, plan)


def _explained(contents: Contents, plan: Plan) -> int:
    """Fragments of which a record will say why they left."""
    return contents.explained.total() + sum(len(chunk.fragments) for chunk in plan.dropped)
