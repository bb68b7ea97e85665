"""Whole sweeps: killed, pruned, failing."""

import json
import os
import signal
import subprocess
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest
from tests.conftest import COMMAND, Fleet

pytestmark = pytest.mark.fleet

KILLED = """
config: cartpole
set: [stop.env_steps=6000, train_config.save_interval=5]
space:
  train_config.learning_rate: {low: 1e-4, high: 1e-2, log: true}
trials: 3
"""
PRUNED = """
config: cartpole
set: [stop.env_steps=3000, train_config.anneal_lr_linearly=false]
space:
  train_config.learning_rate: {low: 1e-5, high: 1e-2, log: true}
objective: learning_rate
sampler: random
trials: 9
"""
FAILING = """
set: [env.generator=broken.py:Broken, stop.env_steps=3000]
space: {seed: {low: 0, high: 1000}}
trials: 9
"""


def start(folder: Path, text: str, *prefix: str) -> "subprocess.Popen[str]":
    (folder / "sweep.yaml").write_text(text)
    command = [*prefix, *COMMAND, "sweep", "sweep.yaml", "--dir", "trials"]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(process: "subprocess.Popen[str]") -> dict[str, Any]:
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    return dict(json.loads(out))


def test_sweep_that_is_killed_goes_on_with_the_trial_that_was_under_way(tmp_path: Path) -> None:
    process = start(tmp_path, KILLED)
    metrics = tmp_path / "trials" / "trial-0001" / "metrics.jsonl"
    Fleet(process, metrics.parent).wait_for_env_steps(2000)
    below = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    psutil.wait_procs(below, timeout=30)
    assert not [child for child in below if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]

    process = start(tmp_path, KILLED)
    Fleet(process, metrics.parent).wait_for_env_steps(4000)
    process.send_signal(signal.SIGINT)
    errors = process.communicate()[1]
    assert process.returncode == 130
    assert "trial 1: goes on" in errors and "trial 1: stopped; the same command goes on with it" in errors

    trials = result(start(tmp_path, KILLED))["trials"]
    assert [(trial["trial"], trial["state"]) for trial in trials] == [(0, "complete"), (1, "complete"), (2, "complete")]
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [row["iteration"] for row in rows] == list(range(1, len(rows) + 1))
    assert rows[-1]["env_steps"] >= 6000
    assert trials[1]["value"] == rows[-1]["episode_return_mean"]
    assert trials[1]["values"]["train_config.learning_rate"] == pytest.approx(rows[0]["learning_rate"], rel=0.1)


def test_sweep_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    process = start(tmp_path, KILLED.replace("trials: 3", "trials: 1"), "nohup")
    Fleet(process, tmp_path / "trials" / "trial-0000").wait_for_env_steps(1000)
    for one in psutil.Process(process.pid).children(recursive=True):  # As a terminal that is closed does.
        one.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGHUP)
    assert [trial["state"] for trial in result(process)["trials"]] == ["complete"]


def test_sweep_asked_twice_to_stop_ends_with_all_processes_of_its_trial(tmp_path: Path) -> None:
    process = start(tmp_path, KILLED)
    Fleet(process, tmp_path / "trials" / "trial-0000").wait_for_env_steps(1000)
    family = psutil.Process(process.pid).children(recursive=True)
    next(one for one in family if "minefleet_learner" in one.cmdline()).suspend()  # So that the run cannot stop.
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert any("once more to kill" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == -signal.SIGINT
    assert not psutil.wait_procs(family, timeout=60)[1]


def test_sweep_prunes_exactly_the_trials_below_the_median(tmp_path: Path) -> None:
    done = result(start(tmp_path, PRUNED))
    rates: list[float] = []
    for trial in done["trials"]:
        rate = trial["values"]["train_config.learning_rate"]
        is_behind = len(rates) >= 5 and rate < median(rates)
        assert trial["state"] == ("pruned" if is_behind else "complete"), (trial, rates)
        rates += [] if is_behind else [rate]  # Pruned ones are no measure.
    assert {"pruned", "complete"} <= {trial["state"] for trial in done["trials"]}
    best = max(done["trials"], key=lambda trial: trial["value"] or 0.0)
    assert done["best"] == best["trial"]


def test_sweep_whose_trials_fail_ends_after_three_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("class Broken:\n    def __init__(self):\n        raise OSError('no engine')\n")
    process = start(tmp_path, FAILING)
    errors = process.communicate()[1]
    assert process.returncode == 1
    assert errors.count("failed, exit code 2") == 3 and "no engine" in errors
    assert "3 trials in a row have failed" in errors


def test_sweep_of_another_file_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    process = start(tmp_path, FAILING.replace("trials: 9", "trials: 1"))
    process.communicate()
    process = start(tmp_path, FAILING + "goal: minimize\n")
    assert "holds a sweep with another goal" in process.communicate()[1]
    assert process.returncode == 2
