"""Kills of parameters, its learner and its actors; `soak/test_parameters_kills.py` has many more of them."""

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from tests.minefleet_parameters import crash_points
from tests.parameters_kills import Arena, Row, Victim, check_records

from minefleet_parameters.store import open_store

CRASH_POINTS = Path(crash_points.__file__)


@pytest.mark.fleet
def test_kills_of_anybody_at_any_moment_leave_whole_versions_that_only_rise(tmp_path: Path) -> None:
    arena = Arena(tmp_path, seed=0)
    with arena.running():
        for _ in range(2):
            for victim in get_args(Victim):
                arena.round(victim)
        arena.check()


def test_a_death_at_any_step_of_a_publish_leaves_the_old_version_or_the_new_one_whole(tmp_path: Path) -> None:
    (tmp_path / "copies").mkdir()
    command = [sys.executable, str(CRASH_POINTS), str(tmp_path / "store"), str(tmp_path / "copies")]
    steps = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    newest = []
    for step in range(1, steps + 2):
        with open_store(tmp_path / "copies" / str(step), keep=1) as store:
            version = store.version()
            newest.append(version.version)
            weights = crash_points.weights_of(version.version)
            for entry in version.manifest.tensors:
                read = store.read_whole(version.version, entry).tobytes()
                assert read == weights[entry.name].tobytes(), (step, entry.name)
            assert list((tmp_path / "copies" / str(step) / "incoming").iterdir()) == []
            assert len(list((tmp_path / "copies" / str(step) / "tensors").iterdir())) == len(weights)
            assert store.identity.epoch in (1, 2)
    assert newest == sorted(newest)
    assert set(newest) == {1, 2}


def submission(version: int, *, epoch: int = 1, checksum: str = "a", acked: bool = True) -> Row:
    return {"epoch": epoch, "version": version, "checksum": checksum, "acked": acked}


WRONG: dict[str, tuple[list[Row], list[Row]]] = {
    "an ack that goes back": ([submission(2), submission(1)], []),
    "other bytes than were sent": ([submission(1)], [submission(1, checksum="b")]),
    "another epoch's than it says": ([submission(1, acked=False)], [submission(1, epoch=2)]),
    "a number with two meanings": (
        [submission(1), submission(1, epoch=2, checksum="b", acked=False)],
        [submission(1, epoch=2, checksum="b")],
    ),
    "a reader that goes back": ([submission(1), submission(2)], [submission(2), submission(1)]),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_kill_test_check_records_finds_each_wrong_history(wrong: str) -> None:
    learner, actor = WRONG[wrong]
    with pytest.raises((AssertionError, KeyError)):
        check_records(learner, [actor])


def test_kill_test_check_records_accepts_a_version_tried_twice_and_published_once() -> None:
    learner = [submission(1, acked=False), submission(1, epoch=2, checksum="b")]
    check_records(learner, [[submission(1, epoch=2, checksum="b")] * 2])
