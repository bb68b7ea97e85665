from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minefleet.core.errors import ContractError, CorruptError
from minefleet_replay.state.chunk import FragmentEntry, PayloadLocation
from minefleet_replay.state.deduplication import StreamNames
from minefleet_replay.state.lease_table import OpenLease, ending_row, read_rows
from minefleet_replay.state.run_state import RunState
from minefleet_replay.storage.identity import ShardIdentity, read_identity, write_identity
from minefleet_replay.storage.row_codec import FragmentRow, names_row, number_key, number_of, read_names

NUMBERS = st.integers(0, 2**63 - 1)


@given(st.text(min_size=1, max_size=20), NUMBERS, NUMBERS, NUMBERS, st.booleans(), st.binary(max_size=20))
def test_fragment_row_is_read_back_as_it_was_packed(
    stream: str, sequence: int, number: int, version: int, flag: bool, header: bytes
) -> None:
    fragment = FragmentEntry(
        sequence, number, 7, version, version, 5, number, sequence, flag, PayloadLocation(7, number), stream, not flag
    )
    meta = FragmentRow(stream, fragment, checksum=2**64 - 1, header=header)
    row = meta.to_row()
    fragment = fragment._replace(row_bytes=len(row))
    assert FragmentRow.from_row(number, row) == replace(meta, fragment=fragment)


@given(NUMBERS, NUMBERS)
def test_number_keys_sort_as_their_numbers(one: int, other: int) -> None:
    assert (number_key(one) < number_key(other)) == (one < other)
    assert number_of(number_key(one)) == one


def test_run_state_survives_its_row() -> None:
    standing = RunState(run_id="r", epoch=3, newest_version=7, lineage=(3, 2, 7), abandoned=((2, 7),))
    assert RunState.from_row(standing.to_row()) == standing


def test_lease_rows_are_read_back() -> None:
    lease = OpenLease(7, 3, ((4, 0), (9, 1)))
    leases = read_rows({7: lease.to_row(), 6: ending_row("acked")})
    assert leases.open == {7: lease}
    assert leases.closed == {6: "acked"}


def test_row_that_is_cut_short_is_corrupt() -> None:
    row = names_row(StreamNames().with_fragment(3, 1, 4, 5))
    with pytest.raises(CorruptError):
        read_names(row[:-16])
    with pytest.raises(CorruptError):
        RunState.from_row(b'{"epoch": 1')


@pytest.mark.parametrize("text", ["", "{", '{"colour": 1}', "[]"])
def test_an_unreadable_identity_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "identity.json").write_text(text)
    with pytest.raises(CorruptError):
        read_identity(tmp_path)


def test_an_identity_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_text('{"format": 1}')
    with pytest.raises(ContractError, match="has format 1, this version reads format 4"):
        read_identity(tmp_path)


def test_shard_identity_is_read_back_from_its_file(tmp_path: Path) -> None:
    assert read_identity(tmp_path) is None
    write_identity(tmp_path, ShardIdentity(run_id="r", appended=3))
    assert read_identity(tmp_path) == ShardIdentity(run_id="r", appended=3)
    assert [path.name for path in tmp_path.iterdir()] == ["identity.json"]
