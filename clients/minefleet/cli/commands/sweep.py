"""`minefleet sweep`: trains a configuration with one set of values after another, and says which did best."""

import argparse
import json
import shlex
import signal
import sys
import threading
from collections.abc import Mapping
from math import inf
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from minefleet.cli.output.readable_text import described, from_here, program
from minefleet.core.errors import EXIT_FAILED, EXIT_SIGNAL, ConfigError, GaveUpError
from minefleet.core.termination_signal_set import stop_signals
from minefleet.launch.role_process import lines_since, quoted
from minefleet.runs.default_run_directory import RUNS
from minefleet.sweeps.spec import GOALS, read_spec

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from minefleet.sweeps.study import Study

FAILURES = 3
"""Failed trials in a row that end a sweep."""
SHOWN = 10
"""Trials in the table at the end."""
SHOWN_LINES = 20
"""Of a failed trial's log."""


def run(arguments: argparse.Namespace) -> int:
    """Works on trials until all are taken."""
    try:
        from minefleet.sweeps.study import Study
    except ImportError as error:
        raise ConfigError(f"{error.name} is missing: pip install 'minefleet[sweep]'") from error
    spec = read_spec(arguments.spec)
    spec.check()
    directory, stopping = arguments.dir or RUNS / arguments.spec.stem, threading.Event()
    _stop_on_signal(stopping)
    try:
        study = Study(directory, spec)
        _work_on_all(study, stopping)
    except OSError as error:
        raise GaveUpError(f"{directory}: {error}; once that is mended, the same command goes on") from error
    _conclude(study, as_json=arguments.json or not sys.stdout.isatty())
    has_failed = study.best is None and all(trial.state.is_finished() for trial in study.trials)
    return EXIT_SIGNAL if stopping.is_set() else EXIT_FAILED if has_failed else 0


def _stop_on_signal(stopping: threading.Event) -> None:
    """Sets the event at the first signal; the next one ends this process, and with it the trial's."""

    def stop(signum: int, _: FrameType | None) -> None:
        for one in stop_signals():
            signal.signal(one, signal.SIG_DFL)
        _say("stopping: a checkpoint first (once more to kill)")
        stopping.set()

    for signum in stop_signals():
        signal.signal(signum, stop)


def _work_on_all(study: "Study", stopping: threading.Event) -> None:
    """Works on trials until all are taken. Raises `GaveUpError` when several in a row fail."""
    failures = 0
    while not stopping.is_set():
        with study.claimed() as taken:
            if taken is None:
                break
            failures = 0 if _work(study, *taken, stopping) else failures + 1
        if failures == FAILURES:
            raise GaveUpError(f"{failures} trials in a row have failed; {study.directory}/trial-*.log say why")


def _work(study: "Study", trial: Any, values: Mapping[str, Any], log: IO[bytes], stopping: threading.Event) -> bool:
    """Trains one trial as far as it goes; returns whether it did not fail."""
    from minefleet.sweeps.trial_run import run_trial

    spec, log_path, start = study.spec, study.run_dir(trial).with_suffix(".log"), log.tell()
    goes_on = "goes on: " if study.run_dir(trial).exists() else ""
    _say(f"trial {trial.number}: {goes_on}{described(values)}")
    end = run_trial(study, trial, spec.overrides(values), log, stopping)
    if (end.code == 0 and end.value is not None) or end.is_pruned:
        study.end(trial, end.value, is_pruned=end.is_pruned)
        best = study.best
        against = f"; the best is {best.value:.4g} of trial {best.number}" if best is not None else ""
        how = "pruned, " if end.is_pruned else ""
        _say(f"trial {trial.number}: {how}{spec.objective} {end.value:.4g}{against}")
        return True
    if stopping.is_set() or end.code == EXIT_SIGNAL:
        _say(f"trial {trial.number}: stopped; the same command goes on with it")
        return True
    reason = f"its metrics have no {spec.objective}" if end.code == 0 else f"exit code {end.code}"
    study.end(trial, None, reason=reason)
    words = "\n".join(lines_since(log_path, start)[-SHOWN_LINES:])
    _say(f"trial {trial.number}: failed, {reason}; see {from_here(log_path)}:{quoted(words)}")
    return False


def _conclude(study: "Study", *, as_json: bool) -> None:
    """Prints the trials, the best first, and how to train with its values; or one line of JSON."""
    spec, best = study.spec, study.best
    if as_json:
        trials = [
            {"trial": trial.number, "state": trial.state.name.lower(), "value": trial.value, "values": trial.params}
            for trial in study.trials
        ]
        print(json.dumps({"dir": str(study.directory), "best": best and best.number, "trials": trials}), flush=True)
        return
    sign = -1 if spec.goal == GOALS[0] else 1

    def rank(trial: "FrozenTrial") -> tuple[bool, float]:
        return trial.state.name != "COMPLETE", inf if trial.value is None else sign * trial.value

    table = Table("trial", spec.objective, "state", "values", box=box.SIMPLE)
    for trial in sorted(study.trials, key=rank)[:SHOWN]:
        value = "–" if trial.value is None else f"{trial.value:.4g}"
        table.add_row(str(trial.number), value, trial.state.name.lower(), described(trial.params))
    Console().print(table)
    if best is not None:
        train = ["train", *filter(None, [spec.config]), *spec.overrides(best.params)]
        watch = ["watch", str(from_here(study.directory))]
        print(f"Try next:\n    {program()} {shlex.join(train)}\n    {program()} {shlex.join(watch)}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
