import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from minefleet.core.errors import CorruptError
from minefleet.rpc.message_pieces import PIECE_BYTES, pieces
from minefleet_replay.state.chunk import PayloadLocation
from minefleet_replay.storage.payload_log import PayloadLog, open_payloads
from minefleet_replay.storage.rocksdb_store import StorageError

FILE_BYTES = 100


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PayloadLog]:
    log = open_payloads(tmp_path, file_bytes=FILE_BYTES)
    yield log
    log.close()


def put(log: PayloadLog, size: int, *, held: bool = True) -> PayloadLocation:
    place = log.write(list(pieces(os.urandom(size))))
    if held:
        log.hold(place.file)
    return place


def test_payload_log_reads_back_in_pieces_what_was_written(log: PayloadLog) -> None:
    payload = os.urandom(2 * PIECE_BYTES + 17)
    place = log.write(list(pieces(payload)))
    assert [len(piece) for piece in log.read(place, len(payload))] == [PIECE_BYTES, PIECE_BYTES, 17]
    assert b"".join(log.read(place, len(payload))) == payload


def test_payload_log_fills_a_file_before_the_next(log: PayloadLog) -> None:
    assert [put(log, 60) for _ in range(4)] == [
        PayloadLocation(0, 0),
        PayloadLocation(0, 60),
        PayloadLocation(1, 0),
        PayloadLocation(1, 60),
    ]
    assert log.disk_bytes == 240


def test_payload_log_file_is_dead_once_nothing_in_it_is_held(log: PayloadLog) -> None:
    places = [put(log, 60) for _ in range(5)]
    log.release(places[2].file)
    assert log.dead() == []
    log.release(places[3].file)
    assert log.dead() == [1]
    log.remove([1])
    assert not log.path(1).exists()
    assert log.disk_bytes == 180
    log.remove([1])


def test_payload_log_never_writes_a_dead_file_again(log: PayloadLog) -> None:
    log.release(put(log, 10).file)
    assert log.dead() == [0]
    assert put(log, 10) == PayloadLocation(1, 0)


def test_payload_log_drops_a_file_of_payloads_that_nothing_names(log: PayloadLog) -> None:
    put(log, 10, held=False)
    assert log.dead() == [0]


def test_payload_log_of_a_later_process_writes_to_files_of_its_own(tmp_path: Path) -> None:
    first = open_payloads(tmp_path, file_bytes=FILE_BYTES)
    place = first.write([b"payload"])
    # As after `kill -9`: nothing was closed, and garbage was on its way.
    with first.path(0).open("ab") as file:
        file.write(b"torn")
    second = open_payloads(tmp_path, file_bytes=FILE_BYTES)
    second.hold(place.file)
    assert second.write([b"more"]) == PayloadLocation(1, 0)
    assert second.read(place, 7) == [b"payload"]
    assert (second.holds(place, 11), second.holds(place, 12), second.holds(PayloadLocation(7, 0), 1)) == (
        True,
        False,
        False,
    )
    first.close()
    second.close()


def test_payload_log_files_of_an_earlier_process_are_dead_once_nothing_in_them_is_held(tmp_path: Path) -> None:
    first = open_payloads(tmp_path, file_bytes=FILE_BYTES)
    places = [first.write([bytes(60)]) for _ in range(3)]
    first.close()
    second = open_payloads(tmp_path, file_bytes=FILE_BYTES)
    second.hold(places[0].file)
    assert second.dead() == [1]
    second.release(places[0].file)
    assert sorted(second.dead()) == [0, 1]
    second.close()


def test_payload_log_never_reuses_a_file_number_that_rows_name(tmp_path: Path) -> None:
    log = open_payloads(tmp_path, file_bytes=FILE_BYTES)
    log.hold(4)
    assert log.write([b"payload"]) == PayloadLocation(5, 0)
    log.close()


def test_payload_log_read_of_a_missing_file_is_corrupt(log: PayloadLog) -> None:
    with pytest.raises(CorruptError, match="missing"):
        log.read(PayloadLocation(3, 0), 10)


def test_payload_log_sync_that_failed_is_never_claimed_later(log: PayloadLog) -> None:
    put(log, 10)
    # A pipe cannot be synced.
    reader, writer = os.pipe()
    os.dup2(writer, log._descriptor or 0)
    for descriptor in (reader, writer):
        os.close(descriptor)
    for _ in range(2):
        with pytest.raises(StorageError, match="cannot be synced"):
            log.sync()
    log._failure = ""
    os.close(log._descriptor or 0)
    log._descriptor = None


def test_payload_log_on_a_full_disk_keeps_what_was_written(tmp_path: Path) -> None:
    log = open_payloads(tmp_path, file_bytes=2**20)
    place = log.write([b"payload"])
    # /dev/full refuses every write with the error of a full disk.
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, log._descriptor or 0)
    os.close(full)
    with pytest.raises(Exception, match="the disk is full"):
        log.write([b"more"])
    assert log.disk_bytes == 7
    assert log.read(place, 7) == [b"payload"]
