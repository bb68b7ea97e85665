"""Mends a damaged store: what can be kept is written into a new database, which then takes the place of the old one.

    db ── read ──▶ plan ── write ──▶ db.repaired ── verify ──▶ db
    db ── put aside ──▶ damaged-<time>/db

Nothing is changed before the new database has been verified. Payloads stay where they are; what is put aside has links
to them, so that it keeps those that the new database does not name.
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from minefleet.errors import InternalError
from minefleet.files import sync
from minefleet_replay.identity import Identity, write_identity
from minefleet_replay.leases import ending_row
from minefleet_replay.limits import Limits
from minefleet_replay.opening import PAYLOADS
from minefleet_replay.rows import LEDGER, STANDING, Meta, drop_row, names_row, number_key, number_of, uses_row
from minefleet_replay.store import DATABASE, Batch, Family, Store, open_database
from minefleet_replay.tools.contents import UNEXPLAINED, Contents, read_contents
from minefleet_replay.tools.fsck import check, known_identity
from minefleet_replay.tools.opening import Opened, link, looking, payloads_in, salvaging
from minefleet_replay.tools.plan import Plan, make_plan, quarantined

REPAIRED = "db.repaired"
BATCH_BYTES = 4 * 2**20

Row = tuple[Family, bytes, bytes]


def repair(directory: Path, limits: Limits, *, accept_loss: bool) -> dict[str, Any]:
    """Mends a store that is locked, or only says what would be lost. Returns a report.

    Raises:
        CorruptError: If nothing of it can be read.
    """
    with salvaging(directory, limits.max_bytes, rescue=True) as opened:
        contents = read_contents(opened.store, payloads_in(directory), limits.fragments_per_chunk)
        identity = known_identity(directory, limits, contents.faults)
        check(contents, identity, limits)
        plan = make_plan(contents, identity, limits, is_whole=not opened.damage)
        report = describe(opened, contents, plan)
        if not accept_loss or not report["faults"]:
            return report
        _write(directory / REPAIRED, opened.store, contents, plan, limits)
    run_id = plan.standing.run_id if plan.standing is not None else ""
    settled = replace(identity, run_id=run_id, appended=plan.ledger.appended)
    _verify(directory, settled, limits)
    return report | {"kept_aside": str(_take_place(directory, settled))}


def describe(opened: Opened, contents: Contents, plan: Plan) -> dict[str, Any]:
    """What is wrong, and what becomes of it."""
    before = contents.ledger
    return {
        "faults": [f"database: {text}" for text in opened.damage] + contents.faults.lines(),
        "lost_fragments": plan.ledger.corrupt - (before.corrupt if before is not None else 0),
        "dropped_fragments": sum(chunk.sound for chunk in plan.dropped),
        "kept_fragments": plan.ledger.live + plan.ledger.leased,
        "quarantined_fragments": quarantined(contents, plan),
        "ledger_before": before.figures() if before is not None else None,
        "ledger": plan.ledger.figures(),
        "kept_aside": None,
    }


def _write(path: Path, source: Store, contents: Contents, plan: Plan, limits: Limits) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with closing(Store(open_database(path, limits.max_bytes, "create"), may_stall=True)) as target:
        batch, batch_bytes = Batch(target), 0
        for family, key, row in _rows(contents, plan, time.time()):
            batch.put(family, key, row)
            batch_bytes += len(row)
            if batch_bytes >= BATCH_BYTES:
                target.write(batch)
                batch, batch_bytes = Batch(target), 0
        target.write(batch)


def _rows(contents: Contents, plan: Plan, now: float) -> Iterator[Row]:
    """All rows of the new store."""
    for key, row in contents.salvage.rows("meta"):
        number = number_of(key)
        if number in plan.quarantined:
            meta = Meta.from_row(number, row)
            yield "meta", key, Meta(meta.stream, meta.fragment._replace(corrupt=True), checksum=0, header=b"").to_row()
        elif number in plan.kept:
            yield "meta", key, row
    yield from _charges(contents, plan)
    yield from _records(contents, plan, now)


def _charges(contents: Contents, plan: Plan) -> Iterator[Row]:
    """Uses and leases: those of chunks that are kept, as they are."""
    for chunk_id, uses in contents.uses.items():
        if chunk_id in plan.kept:
            yield "uses", number_key(chunk_id), uses_row(uses)
    for lease in plan.leases:
        yield "leases", number_key(lease.number), lease.to_row()
    for number, ending in contents.leases.closed.items():
        yield "leases", number_key(number), ending_row(ending)


def _records(contents: Contents, plan: Plan, now: float) -> Iterator[Row]:
    """What is not about single fragments, and why some leave now."""
    for stream, names in (contents.names | plan.names).items():
        yield "names", stream.encode(), names_row(names)
    for family in ("episodes", "drops", "system"):
        for key, row in contents.salvage.rows(family):
            if (family, key) not in contents.meaningless:
                yield family, key, row
    for chunk in plan.dropped:
        uses = contents.uses.get(chunk.id, 0)
        yield "drops", number_key(chunk.id), drop_row(chunk.name, chunk.fragments, "corrupt", uses, now)
    yield "system", LEDGER, plan.ledger.to_row()
    yield "system", UNEXPLAINED, number_key(plan.unexplained)
    if plan.standing is not None:
        yield "system", STANDING, plan.standing.to_row()


def _verify(directory: Path, identity: Identity, limits: Limits) -> None:
    with looking(directory / REPAIRED, limits.max_bytes) as store:
        contents = read_contents(store, payloads_in(directory), limits.fragments_per_chunk)
    check(contents, identity, limits)
    if contents.faults:
        raise InternalError(f"the repair is not sound, and nothing was changed: {contents.faults.lines()[0]}")


def _take_place(directory: Path, identity: Identity) -> Path:
    """Lets the new database be the store's. Returns where the old one lies, with all payloads that it names."""
    aside = directory / f"damaged-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    (aside / PAYLOADS).mkdir(parents=True)
    for path in (directory / PAYLOADS).glob("*"):
        link(path, aside / PAYLOADS / path.name)
    (directory / DATABASE).rename(aside / DATABASE)
    (directory / REPAIRED).rename(directory / DATABASE)
    sync(directory)
    write_identity(directory, identity)
    return aside
