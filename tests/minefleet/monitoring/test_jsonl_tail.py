from pathlib import Path

from minefleet.monitoring.jsonl_tail import MetricsTail


def test_only_whole_lines_are_read_and_each_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsTail(path) as tail:
        assert tail.read() == []
        path.write_text('{"iteration": 1}\n{"iterat')
        assert tail.read() == [{"iteration": 1}]
        assert tail.read() == []
        with path.open("a") as file:
            file.write('ion": 2}\n')
        assert tail.read() == [{"iteration": 2}]


def test_a_file_that_was_cut_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsTail(path) as tail:
        path.write_text('{"iteration": 1}\n{"iteration": 2}\n')
        assert len(tail.read()) == 2
        path.write_text('{"iteration": 1}\n')
        assert tail.read() == [{"iteration": 1}]


def test_a_file_that_replaced_a_shorter_one_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsTail(path) as tail:
        path.write_text('{"iteration": 1}\n{"iteration": 2}\n')
        assert len(tail.read()) == 2
        aside = tmp_path / "aside"
        aside.write_text('{"iteration": 1}\n{"iteration": 2, "again": true}\n{"iteration": 3}\n')
        aside.replace(path)
        assert [one["iteration"] for one in tail.read()] == [1, 2, 3]
