from pathlib import Path

import numpy as np
import pytest

from minefleet.runs.checkpoint_files import Checkpoint, CheckpointState, newest, read_state
from minefleet_learner.checkpoints.writer import CheckpointWriter


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


ROLLING_S = 5.0


def make(iteration: int) -> Checkpoint:
    arrays = {"w": np.full(3, iteration, np.float32)}
    return Checkpoint(
        state=CheckpointState(run_id="r", iteration=iteration), policy=arrays, optimizer=arrays, rng=arrays, run=""
    )


def writer(directory: Path, clock: Clock, *, background: bool) -> CheckpointWriter:
    return CheckpointWriter(
        directory,
        save_interval=10,
        keep_interval=0,
        latest_min_interval_s=ROLLING_S,
        background=background,
        clock=clock,
    )


def iteration_of(directory: Path) -> int:
    path = newest(directory)
    assert path is not None
    return read_state(path).iteration


def test_rolling_checkpoints_keep_their_distance_and_kept_ones_do_not(tmp_path: Path) -> None:
    clock = Clock()
    saver = writer(tmp_path, clock, background=False)
    assert saver.claim(1)
    clock.now += ROLLING_S
    assert not saver.claim(2)  # The first one is not written yet.
    assert saver.claim(10)
    saver.submit(make(1))
    saver.submit(make(10))
    assert not saver.claim(11)
    clock.now += ROLLING_S
    assert saver.claim(12)


def test_checkpoint_writer_reports_a_checkpoint_once_it_is_on_disk(tmp_path: Path) -> None:
    found: list[int] = []
    saver = CheckpointWriter(
        tmp_path,
        save_interval=10,
        keep_interval=0,
        latest_min_interval_s=ROLLING_S,
        background=False,
        saved=lambda: found.append(iteration_of(tmp_path)),
    )
    assert saver.claim(1)
    assert not found
    saver.submit(make(1))
    assert found == [1]


@pytest.mark.parametrize("background", [False, True])
def test_checkpoint_writer_has_written_what_was_submitted_when_it_closes(tmp_path: Path, background: bool) -> None:
    saver = writer(tmp_path, Clock(), background=background)
    for iteration in (9, 10, 11):
        saver.claim(iteration)
        saver.submit(make(iteration))
    saver.close()
    assert iteration_of(tmp_path) == 11
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000010", "00000011", "latest"]


def test_checkpoint_writer_close_raises_a_write_that_failed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    saver = writer(tmp_path / "file", Clock(), background=True)
    saver.submit(make(1))
    with pytest.raises(OSError, match="file"):
        saver.close()
