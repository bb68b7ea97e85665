"""One trial: `minefleet train` as a process, judged by its metrics while it runs."""

import os
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from optuna.trial import Trial

from minefleet.config import FleetConfig
from minefleet.core.errors import EXIT_SIGNAL
from minefleet.core.parent_death import tied
from minefleet.core.subprocess_call import PYTHON
from minefleet.monitoring.jsonl_tail import MetricsTail, last_row
from minefleet.monitoring.run_comparison import value_of
from minefleet.runs.run import METRICS_FILE, read_run
from minefleet.sweeps.study import Study

POLL_S = 1.0
PARTS = 10
"""Parts of a trial's budget, after each of which it is judged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialEnd:
    """The end of a trial's process."""

    code: int
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
    directory = study.run_dir(trial)
    words = ["train", *filter(None, [study.spec.config]), *overrides, "train_config.resume=auto"]
    command = [*PYTHON, "minefleet", *words, "--run-dir", str(directory), "--json"]
    with subprocess.Popen(
        command, env=os.environ | tied(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    ) as child:
        is_pruned = _judge(study, trial, child, stopping)
        if child.poll() is None:
            child.terminate()
        code = child.wait()
    value = value_of(last_row(directory / METRICS_FILE), study.spec.objective)
    return TrialEnd(code=code, is_pruned=is_pruned and code == EXIT_SIGNAL, value=value)


def _judge(study: Study, trial: Trial, child: "subprocess.Popen[bytes]", stopping: threading.Event) -> bool:
    """Reports results until the process has ended or is to end; returns whether the trial is pruned."""
    directory, judged = study.run_dir(trial), study.judged(trial)
    with MetricsTail(directory / METRICS_FILE) as tail:
        while child.poll() is None and not stopping.wait(POLL_S):
            rows = tail.read()
            config = read_run(directory).config if rows else FleetConfig()
            for row in rows:
                part, value = int(PARTS * used(config, row)), value_of(row, study.spec.objective)
                if judged < part < PARTS and value is not None:
                    judged = part
                    trial.report(value, part)
                    if trial.should_prune():
                        return True
    return False


def used(config: FleetConfig, row: dict[str, Any]) -> float:
    """The largest share of a bound that a run has reached by a row of its metrics."""
    bounds: tuple[tuple[float, float], ...] = (
        (row["iteration"], config.train_config.num_iterations),
        (row["env_steps"], config.stop.env_steps),
        (row["wall_s"], 60 * config.stop.minutes),
    )
    return max(reached / bound for reached, bound in bounds if bound)
