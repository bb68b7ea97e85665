"""The store on a real disk: what it survives and what it refuses."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from minefleet.core.errors import ConflictError, CorruptError, FleetError, OverloadedError
from minefleet_replay.storage.open_rocksdb import open_store
from minefleet_replay.storage.rocksdb_store import Store, StoreBatch, translated_storage

MAX_BYTES = 2**26


def opened(directory: Path, *, fresh: bool = False) -> Store:
    return open_store(directory, max_bytes=MAX_BYTES, fresh=fresh)


def put(store: Store, *keys: str, family: Any = "meta", size: int = 100) -> None:
    batch = StoreBatch(store)
    for key in keys:
        batch.put(family, key.encode(), key.encode() * size)
    store.write(batch)


def keys(store: Store, family: Any = "meta") -> str:
    return b"".join(key for key, _ in store.scan(family)).decode()


def damage(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = opened(tmp_path, fresh=True)
    yield store
    store.close()


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A store of ten writes that was never closed: all of it lies in one log."""
    store = opened(tmp_path / "living", fresh=True)
    for key in "abcdefghij":
        put(store, key)
    store.sync(store.written)
    shutil.copytree(tmp_path / "living", tmp_path / "killed")
    store.close()
    return tmp_path / "killed"


def log_of(directory: Path) -> Path:
    (log,) = (path for path in (directory / "db").glob("*.log") if path.stat().st_size)
    return log


def test_rows_of_a_batch_lie_in_their_families_in_the_order_of_their_keys(store: Store) -> None:
    put(store, "b", "a", "c")
    put(store, "z", family="names")
    assert keys(store) == "abc"
    assert [key for key, _ in store.scan("meta", b"b", b"c")] == [b"b"]
    assert (store.last_key("meta"), store.last_key("names"), store.last_key("uses")) == (b"c", b"z", None)
    assert store.get("meta", b"x") is None
    assert store.get_many("names", [b"z", b"x"]) == [b"z" * 100, None]


def test_store_delete_removes_single_rows_and_ranges(store: Store) -> None:
    put(store, *"abcde")
    batch = StoreBatch(store)
    batch.delete("meta", b"a")
    batch.delete_range("meta", b"b", b"d")
    store.write(batch)
    assert keys(store) == "de"


def test_store_sync_covers_all_writes_before_it(store: Store) -> None:
    put(store, "a")
    put(store, "b")
    store.sync(1)
    assert store.synced == 2


def test_store_that_is_open_is_refused_to_a_second_opener(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ConflictError):
        opened(tmp_path)


def test_a_torn_end_of_the_log_loses_only_what_was_not_written_whole(killed: Path) -> None:
    log = log_of(killed)
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 5)
    store = opened(killed)
    assert keys(store) == "abcdefghi"
    store.close()


def test_garbage_at_the_end_of_the_log_is_ignored(killed: Path) -> None:
    with log_of(killed).open("ab") as file:
        file.write(b"\xff" * 50)
    store = opened(killed)
    assert keys(store) == "abcdefghij"
    store.close()


def test_a_log_that_is_damaged_in_the_middle_is_refused(killed: Path) -> None:
    damage(log_of(killed), 300, b"\xff\xff\xff")
    with pytest.raises(CorruptError):
        opened(killed)


@pytest.mark.parametrize("missing", ["CURRENT", "MANIFEST-*", ""])
def test_a_store_with_missing_files_is_refused_and_never_replaced_by_an_empty_one(killed: Path, missing: str) -> None:
    if missing:
        next((killed / "db").glob(missing)).unlink()
    else:
        shutil.rmtree(killed / "db")
    with pytest.raises(CorruptError):
        opened(killed)


def test_an_empty_options_file_of_the_binding_does_no_harm(killed: Path) -> None:
    (killed / "db" / "rocksdict-config.json").write_text("")
    store = opened(killed)
    assert keys(store) == "abcdefghij"
    store.close()


def test_rot_in_a_table_is_an_error_and_not_the_end_of_the_rows(tmp_path: Path) -> None:
    store = opened(tmp_path, fresh=True)
    put(store, *"abcdefghij", family="meta")
    store.close()
    for table in (tmp_path / "db").glob("*.sst"):
        damage(table, 20, b"\xff\xff\xff")
    store = opened(tmp_path)
    with pytest.raises(CorruptError):
        keys(store, "meta")
    with pytest.raises(CorruptError):
        store.get("meta", b"a")
    store.close()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Result incomplete: Write stall", OverloadedError),
        ("IO error: No space left on device: While appending to file", OverloadedError),
        ("Corruption: block checksum mismatch", CorruptError),
    ],
)
def test_errors_that_rocksdb_names_become_errors_of_ours(text: str, kind: type[FleetError]) -> None:
    with pytest.raises(kind), translated_storage():
        raise Exception(text)


def test_errors_that_rocksdb_does_not_name_stay_as_they_are() -> None:
    with pytest.raises(ZeroDivisionError), translated_storage():
        raise ZeroDivisionError


def test_a_stalled_store_refuses_at_once_and_stores_what_it_acks(make_world: Callable[..., Any]) -> None:
    world = make_world(max_bytes=2**24, max_chunks=10_000)
    payload, refused, stored = bytes(2**17), 0, 0
    for sequence in range(300):
        try:
            world.append("s", sequence, payload=payload)
            stored += 1
        except OverloadedError:
            refused += 1
    assert (refused + stored, world.figure("appended_fragments")) == (300, stored)
    assert world.faults() == []


def test_replay_store_gives_disk_back_when_payloads_are_deleted(make_world: Callable[..., Any]) -> None:
    world = make_world(max_bytes=2**24, max_chunks=10_000)
    payload = bytes(2**17)
    while (sequence := world.figure("appended_fragments")) < 300:
        try:
            world.append("s", sequence, payload=payload)
        except OverloadedError:
            world.replay.tick()
        if sequence % 16 == 0:
            world.replay.tick()
    world.replay.tick()
    assert 300 * len(payload) > 2 * 2**24
    assert sum(path.stat().st_size for path in (world.directory / "db").iterdir()) < 2**24
