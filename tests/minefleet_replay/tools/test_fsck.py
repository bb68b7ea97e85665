"""fsck finds every damage of a store, and replay goes on without the parts that it cannot open."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minefleet.core.errors import ConflictError
from minefleet_replay.state.lease_table import OpenLease
from minefleet_replay.state.ledger_totals import Amount, Ledger
from minefleet_replay.storage.identity import ShardIdentity, write_identity
from minefleet_replay.storage.rocksdb_store import Family, StoreBatch
from minefleet_replay.storage.row_codec import LEDGER, RUN_STATE, number_key, uses_row
from minefleet_replay.tools.fsck import fsck
from minefleet_replay.tools.offline_store import locked

LOG_BLOCK_BYTES = 2**15
"""RocksDB's log is read by blocks: what follows damage in one is lost with it."""

Damage = Callable[[Any], None]


def overwrite(path: Path, offset: int, data: bytes = b"\xfe\xfe\xfe") -> None:
    with path.open("r+b") as file:
        file.seek(offset % path.stat().st_size)
        file.write(data)


def place_of(path: Path, text: bytes) -> int:
    offset = path.read_bytes().find(text)
    assert offset >= 0
    return offset


def table_of(stopped: Any, family: Family) -> Path:
    """The one table that holds a family's rows."""
    (table,) = [Path(path) for path in stopped.database.glob("*.sst") if f"name{family}".encode() in path.read_bytes()]
    return table


def rot_a_payload(stopped: Any) -> None:
    overwrite(stopped.payloads, place_of(stopped.payloads, b"b/1/") + 100)


def cut_the_payloads(stopped: Any) -> None:
    with stopped.payloads.open("r+b") as file:
        file.truncate(place_of(stopped.payloads, b"b/3/") + 100)


def lose_the_payloads(stopped: Any) -> None:
    stopped.payloads.unlink()


def rot_the_table_of_metas(stopped: Any) -> None:
    overwrite(table_of(stopped, "meta"), 20)


def rot_the_table_of_uses(stopped: Any) -> None:
    overwrite(table_of(stopped, "uses"), 10)


def rot_the_table_of_names(stopped: Any) -> None:
    overwrite(table_of(stopped, "names"), 20)


def rot_the_table_of_leases(stopped: Any) -> None:
    overwrite(table_of(stopped, "leases"), 10)


def rot_the_table_of_drops(stopped: Any) -> None:
    overwrite(table_of(stopped, "drops"), 20)


def rot_the_table_of_the_ledger(stopped: Any) -> None:
    overwrite(table_of(stopped, "system"), 20)


def lose_a_table(stopped: Any) -> None:
    table_of(stopped, "meta").unlink()


def cut_a_table(stopped: Any) -> None:
    table = table_of(stopped, "names")
    with table.open("r+b") as file:
        file.truncate(table.stat().st_size // 2)


def lose_current(stopped: Any) -> None:
    (stopped.database / "CURRENT").unlink()


def empty_current(stopped: Any) -> None:
    (stopped.database / "CURRENT").write_text("")


def lose_the_manifest(stopped: Any) -> None:
    next(stopped.database.glob("MANIFEST-*")).unlink()


def cut_the_manifest(stopped: Any) -> None:
    manifest = next(stopped.database.glob("MANIFEST-*"))
    with manifest.open("r+b") as file:
        file.truncate(manifest.stat().st_size // 2)


def delete_a_meta(stopped: Any) -> None:
    key = sorted(stopped.rows("meta"))[5]
    stopped.change(lambda batch: batch.delete("meta", key))


def delete_the_names_of_a_stream(stopped: Any) -> None:
    stopped.change(lambda batch: batch.delete("names", b"b"))


def delete_the_ledger(stopped: Any) -> None:
    stopped.change(lambda batch: batch.delete("system", LEDGER))


def delete_the_standing(stopped: Any) -> None:
    stopped.change(lambda batch: batch.delete("system", RUN_STATE))


def use_a_chunk_that_is_not_there(stopped: Any) -> None:
    stopped.change(lambda batch: batch.put("uses", number_key(99), uses_row(1)))


def lease_a_chunk_that_is_not_there(stopped: Any) -> None:
    stopped.change(lambda batch: batch.put("leases", number_key(7), OpenLease(7, 4, ((99, 0),)).to_row()))


def lease_under_another_limit(world: Any) -> None:
    world.append("s", 0)
    world.lease(1, 1)
    world.ack(1)
    world.lease(2, 1)
    world.lease(3, 1, max_reuse=1)


def test_a_charge_under_the_limit_of_its_lease_is_no_fault(kill: Any) -> None:
    assert kill(lease_under_another_limit, max_reuse=2).fsck() == []


def lease_under_a_lower_limit(world: Any) -> None:
    world.append("s", 0)
    world.lease(1, 1, max_reuse=2)
    world.ack(1)


def test_uses_above_the_limit_that_was_set_are_a_fault(kill: Any) -> None:
    stopped = kill(lease_under_a_lower_limit, max_reuse=3)
    assert stopped.fsck() == []
    use_a_chunk_too_often(stopped, place=0)
    assert stopped.fsck() == ["chunk: s/0, id 0: it is charged with 3 uses, max_reuse is 2"]


def use_a_chunk_too_often(stopped: Any, place: int = -2) -> None:
    chunk = sorted(stopped.rows("meta"))[place]
    stopped.change(lambda batch: batch.put("uses", chunk, uses_row(3)))


def garble_rows(stopped: Any) -> None:
    def garble(batch: StoreBatch) -> None:
        for family in ("meta", "uses", "names", "leases", "drops"):
            batch.put(family, sorted(stopped_rows[family])[-1], b"?")

    stopped_rows = {family: stopped.rows(family) for family in ("meta", "uses", "names", "leases", "drops")}
    stopped.change(garble)


def count_one_more(bucket: str, unit: str = "fragments") -> Damage:
    def miscount(stopped: Any) -> None:
        ledger = Ledger.from_row(stopped.rows("system")[LEDGER])
        account = getattr(ledger, unit)
        wrong = ledger._replace(**{unit: account._replace(**{bucket: getattr(account, bucket) + 1})})
        stopped.change(lambda batch: batch.put("system", LEDGER, wrong.to_row()))

    miscount.__name__ = f"count_one_more_{bucket}_{unit}"
    return miscount


def move_one(stopped: Any) -> None:
    ledger = Ledger.from_row(stopped.rows("system")[LEDGER]).moved("expired", "trained", Amount(1, 1))
    stopped.change(lambda batch: batch.put("system", LEDGER, ledger.to_row()))


def lose_what_was_synced(stopped: Any) -> None:
    write_identity(stopped.directory, ShardIdentity(run_id="run-1", appended=40))


def garble_the_identity(stopped: Any) -> None:
    (stopped.directory / "identity.json").write_text("{")


BEFALLS = [
    (rot_a_payload, "payload: fragment b/1"),
    (cut_the_payloads, "its place lies outside"),
    (lose_the_payloads, ".payloads is missing"),
    (rot_the_table_of_metas, "unreadable block: family meta"),
    (rot_the_table_of_uses, "unreadable block: family uses"),
    (rot_the_table_of_names, "unreadable block: family names"),
    (rot_the_table_of_leases, "unreadable block: family leases"),
    (rot_the_table_of_drops, "unreadable block: family drops"),
    (rot_the_table_of_the_ledger, "unreadable block: family system"),
    (lose_a_table, "database: "),
    (cut_a_table, "database: "),
    (lose_current, "database: "),
    (empty_current, "database: "),
    (lose_the_manifest, "database: "),
    (cut_the_manifest, ""),
    (delete_a_meta, "of it are missing"),
    (delete_the_names_of_a_stream, "its stream does not know its fragments"),
    (delete_the_ledger, "ledger: there is none"),
    (delete_the_standing, "says where run run-1 stands is missing"),
    (use_a_chunk_that_is_not_there, "uses: chunk 99"),
    (lease_a_chunk_that_is_not_there, "lease: chunk 99"),
    (use_a_chunk_too_often, "charged with 3 uses"),
    (garble_rows, "unreadable row: family names"),
    (count_one_more("live"), "as live"),
    (count_one_more("leased"), "as leased"),
    (count_one_more("live", "steps"), "steps as live"),
    (count_one_more("trained", "steps"), "do not add up"),
    (count_one_more("trained"), "do not add up"),
    (count_one_more("corrupt"), "do not add up"),
    (count_one_more("appended"), "do not add up"),
    (move_one, "as trained, there are records of"),
    (lose_what_was_synced, "40 had been synced"),
    (garble_the_identity, "identity.json is unreadable"),
]


def test_a_sound_store_has_no_faults_and_is_not_touched(stopped: Any, killed: Any) -> None:
    for store in (stopped, killed):
        before = store.files()
        assert store.fsck() == []
        assert store.files() == before


@pytest.mark.parametrize(("damage", "fault"), BEFALLS, ids=[damage.__name__ for damage, _ in BEFALLS])
def test_fsck_of_a_damaged_store_finds_it_and_changes_nothing(stopped: Any, damage: Damage, fault: str) -> None:
    damage(stopped)
    before = stopped.files()
    faults = stopped.fsck()
    assert any(fault in text for text in faults), faults
    assert stopped.files() == before


def test_a_file_of_payloads_that_no_row_names_is_told_and_no_fault(stopped: Any) -> None:
    (stopped.directory / "payloads" / "00000077.payloads").write_bytes(b"left by a crash")
    with locked(stopped.directory):
        report = fsck(stopped.directory, stopped.world.limits)
    assert (report["faults"], report["unnamed_payload_files"]) == ([], ["00000077.payloads"])


def test_fsck_of_a_log_damaged_in_the_middle_says_that_the_database_does_not_open(kill: Callable[..., Any]) -> None:
    def fill(world: Any) -> None:
        for sequence in range(300):
            world.append("s", sequence)

    killed = kill(fill, max_chunks=300)
    (log,) = (path for path in killed.database.glob("*.log") if path.stat().st_size)
    assert log.stat().st_size > 3 * LOG_BLOCK_BYTES
    overwrite(log, LOG_BLOCK_BYTES + 500)
    before = killed.files()
    assert any("database: " in fault for fault in killed.fsck())
    assert killed.files() == before


@pytest.mark.parametrize("damage", [lose_current, lose_the_manifest, cut_the_manifest])
def test_fsck_of_a_killed_store_without_its_manifest_finds_faults(killed: Any, damage: Damage) -> None:
    damage(killed)
    assert killed.fsck() != []


@pytest.mark.parametrize("damage", [lose_current, rot_the_table_of_metas, garble_the_identity])
def test_fsck_of_a_store_that_goes_on_after_another_was_set_aside_finds_nothing(stopped: Any, damage: Damage) -> None:
    ledger = Ledger.from_row(stopped.rows("system")[LEDGER])
    damage(stopped)
    world = stopped.open()
    assert world.faults() == []
    assert world.replay.transactions.state.ledger == Ledger(
        *(one._replace(live=0, leased=0, corrupt=one.corrupt + one.live + one.leased) for one in ledger)
    )
    assert [world.append("new", sequence, version=4) for sequence in (0, 1)] == ["stored", "stored"]
    world.lease(3, 1)
    world.ack(3)
    world.replay.tick()
    world.replay.close()
    assert stopped.fsck() == []
    world.replay = world.open()


def test_a_store_that_is_open_is_refused(world: Any) -> None:
    with pytest.raises(ConflictError, match="in use by another"), locked(world.directory):
        pass


def test_a_store_whose_database_is_gone_says_so(stopped: Any) -> None:
    shutil.rmtree(stopped.database)
    assert any("database: " in fault for fault in stopped.fsck())
