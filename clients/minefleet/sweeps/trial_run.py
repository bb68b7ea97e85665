"""One trial: `minefleet train` as a process, judged by its metrics while it runs."""

import os
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from optuna.trial import Trial

from minefleet.config import FleetConfig
from minefleet.config.load import load
from minefleet.core.child_process_start import PYTHON
from minefleet.core.errors import ConfigError
from minefleet.core.parent_death import tied
from minefleet.monitoring.jsonl_tail import MetricsTail
from minefleet.monitoring.run_comparison import last_value, value_of
from minefleet.runs.checkpoint_files import CheckpointState, newest, read_state
from minefleet.runs.run_yaml import METRICS_FILE, RUN_FILE, read_run
from minefleet.sweeps.study import Study

POLL_S = 1.0
PARTS = 10
"""Parts of a trial's budget, after each of which it is judged."""
FEWEST_MINUTES = 0.01
"""Of a trial that has spent its budget and not recorded its end: 0 would take the bound away."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialEnd:
    """The end of a trial's process."""

    code: int
    """Exit code; negative is the signal that killed it."""
    is_pruned: bool
    value: float | None
    """The last value of the objective; None where there is none."""


def run_trial(
    study: Study, trial: Trial, overrides: Sequence[str], log: IO[bytes], stopping: threading.Event
) -> TrialEnd:
    """Trains until the trial's end, until it is pruned or until asked to stop; goes on where its run stands already.

    Args:
        study: The sweep.
        trial: The trial.
        overrides: `key=value` of its run.
        log: Takes what its launcher prints.
        stopping: Asks it to stop. Its run writes a checkpoint then.
    """
    code, is_pruned = 0, False
    config, state = load(study.spec.config, overrides), _state(study.run_dir(trial))
    if state.stopped_by in ("", "signal"):  # Else it has ended, and was killed before that was recorded.
        if config.stop.minutes:  # Of a launch; a trial has as many, whether it was killed or not.
            left = max(config.stop.minutes - state.wall_s / 60, FEWEST_MINUTES)
            overrides = [*overrides, f"stop.minutes={left}"]
        with subprocess.Popen(
            _command(study, trial, overrides),
            env=os.environ | tied(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        ) as child:
            try:
                is_pruned = _judge(study, trial, config, child, stopping)
            finally:  # Leaving the context waits for it.
                child.terminate()
            code = child.wait()
    value = last_value(study.run_dir(trial) / METRICS_FILE, study.spec.objective)
    return TrialEnd(code=code, is_pruned=is_pruned, value=value)


def _command(study: Study, trial: Trial, overrides: Sequence[str]) -> list[str]:
    """A new run; or its own one goes on, with the configuration that it has begun with."""
    directory = study.run_dir(trial)
    resumed = ["--resume", str(directory), *overrides]
    fresh = [*filter(None, [study.spec.config]), *overrides, "--run-dir", str(directory)]
    return [*PYTHON, "minefleet", "train", *(resumed if (directory / RUN_FILE).exists() else fresh), "--json"]


def _state(directory: Path) -> CheckpointState:
    """The position of a trial's run; its start, too, where the checkpoint is damaged, which the run itself refuses."""
    with suppress(ConfigError):
        if (directory / RUN_FILE).exists() and (place := newest(read_run(directory).checkpoints)) is not None:
            return read_state(place)
    return CheckpointState(run_id="")


def _judge(
    study: Study, trial: Trial, config: FleetConfig, child: "subprocess.Popen[bytes]", stopping: threading.Event
) -> bool:
    """Reports results until the process has ended or is to end; returns whether the trial is pruned."""
    judged = study.judged(trial)
    if judged and trial.should_prune():  # It was killed before that was recorded.
        return True
    tail = MetricsTail(study.run_dir(trial) / METRICS_FILE)
    while not stopping.is_set():
        has_ended = child.poll() is not None  # Its last rows are judged like the others, however late the poll.
        for row in tail.read():
            fraction = config.fraction_done(row["iteration"], row["env_steps"], row["wall_s"])
            reached, value = int(PARTS * fraction), value_of(row, study.spec.objective)
            if value is None:
                continue
            # A part without a report is compared with those trials only that happen to have a row in it.
            for part in range(judged + 1, min(reached + 1, PARTS)):
                judged = part
                trial.report(value, part)
                if reached < PARTS and trial.should_prune():
                    return True
        if has_ended or stopping.wait(POLL_S):
            break
    return False
