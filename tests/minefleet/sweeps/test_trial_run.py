"""One trial's process: stopped, killed, and taken up where its budget is spent or its end is known."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from minefleet.config import EnvConfig, FleetConfig
from minefleet.core.errors import EXIT_SIGNAL
from minefleet.core.schema import Schema
from minefleet.runs import checkpoint_files
from minefleet.runs.checkpoint_files import Checkpoint, CheckpointState
from minefleet.runs.run_yaml import METRICS_FILE, Run
from minefleet.sweeps.spec import SweepSpec
from minefleet.sweeps.study import FIRST_PRUNED_PART, RANDOM_TRIALS, Study
from minefleet.sweeps.trial_run import TrialEnd, run_trial

SPEC = SweepSpec(space={"seed": [1, 2, 3]}, config="CartPole-v1", set=["stop.minutes=30"], trials=9)


def write_stopped_run(directory: Path, state: CheckpointState) -> None:
    """A run that has trained for a while."""
    config = FleetConfig(env=EnvConfig(id="CartPole-v1"))
    directory.mkdir()
    run = Run(directory=directory, config=config, schema=Schema(obs={}, action={}), architecture="")
    run.write()
    empty = {"": np.zeros(1)}
    checkpoint_files.write(run.checkpoints, Checkpoint(state=state, policy=empty, optimizer=empty, rng=empty, run="{}"))
    rows = [
        {"iteration": 9, "env_steps": 9, "wall_s": state.wall_s, "episode_return_mean": value} for value in (7.0, None)
    ]
    (directory / METRICS_FILE).write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def run_next(study: Study, state: CheckpointState | None = None, *, stops: bool = True) -> TrialEnd:
    """Runs a trial until it has started, or to its end; where there is a state, its run stands there already."""
    stopping = threading.Event()
    if stops:
        stopping.set()
    with study.claimed() as taken:
        assert taken is not None
        trial, values, log = taken
        if state is not None:
            write_stopped_run(study.run_dir(trial), state)
        return run_trial(study, trial, study.spec.overrides(values), log, stopping)


def test_run_trial_that_is_asked_to_stop_before_it_listens_is_not_pruned(tmp_path: Path) -> None:
    end = run_next(Study(tmp_path, SPEC))
    assert end.code in (EXIT_SIGNAL, -signal.SIGTERM) and not end.is_pruned


def test_run_trial_whose_end_was_not_recorded_trains_no_more(tmp_path: Path) -> None:
    end = run_next(Study(tmp_path, SPEC), CheckpointState(run_id="x", stopped_by="minutes", wall_s=1800.0), stops=False)
    assert end == TrialEnd(code=0, is_pruned=False, value=7.0)


def test_run_trial_that_raises_leaves_no_process(tmp_path: Path) -> None:
    class Full(Study):
        """A sweep whose disk is full."""

        def judged(self, _: object) -> int:
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        run_next(Full(tmp_path, SPEC), stops=False)
    assert not psutil.Process().children()


def test_run_trial_that_was_killed_before_it_was_pruned_is_pruned(tmp_path: Path) -> None:
    study = Study(tmp_path, SPEC)
    for number in range(RANDOM_TRIALS + 1):
        with study.claimed() as taken:
            assert taken is not None
            for part in range(1, FIRST_PRUNED_PART + 1):
                taken[0].report(-float(number), part)
            if number < RANDOM_TRIALS:
                study.end(taken[0], 1.0)
    end = run_next(study, CheckpointState(run_id="x", wall_s=720.0), stops=False)
    assert end.is_pruned and end.value == 7.0


def test_run_trial_whose_row_lies_several_parts_after_the_last_is_judged_in_each(tmp_path: Path) -> None:
    study = Study(tmp_path, SPEC)
    for _ in range(RANDOM_TRIALS):
        with study.claimed() as taken:
            assert taken is not None
            taken[0].report(8.0, FIRST_PRUNED_PART + 1)
            study.end(taken[0], 8.0)
    end = run_next(study, CheckpointState(run_id="x", wall_s=1000.0), stops=False)
    assert end.is_pruned
    assert study.trials[-1].intermediate_values == dict.fromkeys(range(1, FIRST_PRUNED_PART + 2), 7.0)


@pytest.mark.parametrize(("spent_s", "left"), [(0.0, 30.0), (1200.0, 10.0), (1801.0, 0.01)])
def test_run_trial_that_is_taken_up_has_the_minutes_that_are_left(tmp_path: Path, spent_s: float, left: float) -> None:
    study, seen = Study(tmp_path, SPEC), []

    class Looking(Study):
        """Sees the command that the trial was started with."""

        def judged(self, _: object) -> int:
            for child in psutil.Process().children():  # One may be another test's.
                while not child.cmdline():  # Its program is being loaded.
                    time.sleep(0.01)
                seen.extend(child.cmdline())
            return 0

    run_next(Looking(tmp_path, study.spec), CheckpointState(run_id="x", stopped_by="signal", wall_s=spent_s))
    minutes = [float(word.partition("=")[2]) for word in seen if word.startswith("stop.minutes=")]
    assert minutes[-1] == pytest.approx(left)
    assert os.fspath(tmp_path / "trial-0000") in seen
