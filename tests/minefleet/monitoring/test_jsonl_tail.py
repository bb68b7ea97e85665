import json
from pathlib import Path

import pytest

from minefleet.monitoring.jsonl_tail import BLOCK_BYTES, MetricsTail, last_row, read_rows


def test_metrics_tail_reads_whole_lines_only_and_each_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path)
    assert tail.read() == []
    path.write_text('{"iteration": 1}\n{"iterat')
    assert tail.read() == [{"iteration": 1}]
    assert tail.read() == []
    with path.open("a") as file:
        file.write('ion": 2}\n')
    assert tail.read() == [{"iteration": 2}]


@pytest.mark.parametrize("left", [[], [1], [1, 2]])
@pytest.mark.parametrize("again", [[], [3], [3, 4, 5]])
def test_a_file_that_was_cut_is_read_again_though_it_has_grown_since(
    tmp_path: Path, left: list[int], again: list[int]
) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path)
    path.write_text("".join(f'{{"iteration": {number}}}\n' for number in (1, 2, 3)))
    assert len(tail.read()) == 3
    rows = [{"iteration": number} for number in left] + [{"iteration": number, "again": True} for number in again]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert tail.read() == rows
    with path.open("a") as file:
        file.write('{"iteration": 9}\n')
    assert tail.read() == [{"iteration": 9}]


def test_a_file_that_replaced_another_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path)
    path.write_text('{"iteration": 1}\n{"iteration": 2}\n')
    assert len(tail.read()) == 2
    aside = tmp_path / "aside"
    aside.write_text('{"iteration": 1}\n{"iteration": 2, "again": true}\n{"iteration": 3}\n')
    aside.replace(path)
    assert [one["iteration"] for one in tail.read()] == [1, 2, 3]


def test_last_row_of_a_file_is_the_last_whole_one_however_long(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert last_row(path) == {}
    path.write_text('{"iteration"')
    assert last_row(path) == {}
    for text in ("", "x" * 3 * BLOCK_BYTES):
        path.write_text(f'{{"iteration": 1}}\n{{"iteration": 2, "text": "{text}"}}\n{{"iter')
        assert last_row(path) == {"iteration": 2, "text": text}
    path.write_text('{"iteration": 3}\n')
    assert last_row(path) == {"iteration": 3}


def test_metrics_tail_of_a_file_that_a_crash_has_damaged_leaves_the_damage_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"iteration": 1}\n\0\0\0\n[]\n{"iteration": 2}\n')
    assert [row["iteration"] for row in read_rows(path)] == [1, 2]
