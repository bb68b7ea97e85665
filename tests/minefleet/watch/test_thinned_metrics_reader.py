import json
import math
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.minefleet.watch.page_server import row_of

from minefleet.monitoring.jsonl_tail import last_row, whole_bytes
from minefleet.watch.thinned_metrics_reader import read_curves


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines))
    return path


def test_curves_of_a_long_file_are_thinned_and_end_with_the_last_row(tmp_path: Path) -> None:
    path = write(tmp_path / "m", *(json.dumps(row_of(number)) for number in range(1, 50001)), "")
    found = read_curves(path, points=100)
    taken = [row["iteration"] for row in found.rows]
    assert found.is_thinned and 90 <= len(taken) <= 101
    assert taken == sorted(set(taken)) and taken[0] == 1 and taken[-1] == found.total == 50000
    gaps = [later - earlier for earlier, later in pairwise(taken)]
    assert max(gaps) < 1000


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(0, 60),
    begin=st.floats(-10, 7000),
    end=st.floats(-10, 7000),
    axis=st.sampled_from(["iteration", "env_steps", "wall_s"]),
)
def test_curves_of_a_range_are_the_rows_that_a_slow_search_finds(
    count: int, begin: float, end: float, axis: str
) -> None:
    rows = [row_of(number, text="x" * (number * 37 % 200)) for number in range(1, count + 1)]
    with TemporaryDirectory() as place:
        path = write(Path(place, "m"), *map(json.dumps, rows), "")
        found = read_curves(path, points=100, axis=axis, begin=begin, end=end)
    assert found.rows == [row for row in rows if begin <= row[axis] <= end]


def test_curves_leave_out_a_line_without_end_and_lines_that_are_no_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "m", json.dumps(row_of(1)), "\0\0\0", "[]", "[" * 100000, "{}", json.dumps(row_of(2)), "{")
    assert [row["iteration"] for row in read_curves(path, points=10).rows] == [1, 2]
    assert last_row(path)["iteration"] == 2
    assert last_row(write(path, "{")) == last_row(tmp_path / "none") == {}


@pytest.mark.parametrize(("before", "left"), [(3, 0), (3, 2), (20_000, 0), (20_000, 10_000)])
def test_curves_of_a_file_that_is_cut_while_it_is_read_are_those_of_the_rows_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, left: int
) -> None:
    rows = [json.dumps(row_of(number, text="x" * 100)) for number in range(1, before + 1)]
    path = write(tmp_path / "m", *rows, "")

    def size_before_the_cut(file: IO[bytes]) -> int:
        size = whole_bytes(file)
        path.write_text("".join(f"{row}\n" for row in rows[:left]))
        return size

    for module in ("watch.thinned_metrics_reader", "monitoring.jsonl_tail"):
        monkeypatch.setattr(f"minefleet.{module}.whole_bytes", size_before_the_cut)
    found = read_curves(path, points=100)
    assert all(row["iteration"] <= left for row in found.rows)
    assert (found.rows != []) == (left > 0)
    write(path, *rows, "")
    assert last_row(path).get("iteration", 0) == left


def test_columns_have_none_where_a_row_has_no_finite_number(tmp_path: Path) -> None:
    rows = [row_of(1, loss=math.nan), row_of(2, loss="text"), row_of(3), row_of(4, loss=True), row_of(5, loss=1)]
    path = write(tmp_path / "m", *map(json.dumps, rows), "")
    columns = read_curves(path, points=10).columns(["loss", "loop_share.training", "none.at.all"])
    assert columns["loss"] == [None, None, None, None, 1]
    assert columns["loop_share.training"] == [0.5] * 5 and columns["none.at.all"] == [None] * 5
