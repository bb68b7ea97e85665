"""Records of why fragments left: which are told, and in which order."""

import pytest

from minefleet.core.errors import CorruptError
from minefleet.rpc.fragment_drop_record import DropRecord
from minefleet_replay.engine.latest_drops import latest, read_drop
from minefleet_replay.state.chunk import NO_LOCATION, FragmentEntry
from minefleet_replay.state.deduplication import ChunkName
from minefleet_replay.storage.row_codec import drop_row


def row(stream: str, number: int, at: float) -> bytes:
    fragments = [
        FragmentEntry(sequence, number, 1, 7, 8, 4, number, 2 * number, False, NO_LOCATION)
        for sequence in (2 * number, 2 * number + 1)
    ]
    return drop_row(ChunkName(stream, number), fragments, "stale", 0, at)


def test_read_drop_returns_what_was_written() -> None:
    assert read_drop(row("s", 3, 12.5)) == DropRecord(
        stream="s", chunk=3, sequences=(6, 7), reason="stale", uses=0, steps=8, oldest_version=7, at=12.5
    )


def test_latest_drops_come_newest_first_whatever_the_order_of_rows() -> None:
    rows = [row("s", number, at) for number, at in enumerate((5.125, 100.0, 20.5, 3.0625))]
    assert [one.at for one in latest(rows, "", 3)] == [100.0, 20.5, 5.125]


def test_latest_drops_of_a_stream_leave_out_streams_of_similar_names() -> None:
    rows = [row("s", 0, 1.0), row("ss", 1, 2.0), row('"s"', 2, 3.0), row("é", 3, 4.0)]
    assert [[one.chunk for one in latest(rows, stream, 9)] for stream in ("s", "ss", '"s"', "é")] == [
        [0],
        [1],
        [2],
        [3],
    ]


def test_drop_record_survives_the_wire() -> None:
    departure = read_drop(row("s", 3, 1_700_000_000.25))
    assert DropRecord.from_proto(departure.to_proto()) == departure


@pytest.mark.parametrize("rotten", [b"", b"{", b"[]", b'{"at": 1.0}', b'{"sequences": [], "at": 1.0, "more": 1}'])
def test_drop_log_row_that_is_no_record_is_refused(rotten: bytes) -> None:
    with pytest.raises(CorruptError):
        read_drop(rotten)
