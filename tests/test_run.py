"""One whole run, as a user has it: it trains, a role is killed, it is stopped, goes on and ends; and what it leaves."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import COMMAND, Fleet, assert_counters_never_go_back, assert_trained

from minefleet.watch.watched_runs import marks

KEYS = """iteration env_steps trained_steps policy_version episodes episode_return_mean episode_length_mean sps
staleness_mean staleness_max reuse_mean policy_loss value_loss entropy approx_kl clip_fraction explained_variance
grad_norm learner_wait_ratio""".split()
ITERATION_STEPS = 8 * 32
"""Of the preset."""
ROLES = ("actor-0", "learner", "replay", "parameters")


def test_a_run_learns_though_its_learner_is_killed_and_it_is_stopped_and_leaves_everything_it_promises(
    train: Callable[..., Fleet], evaluate: Callable[..., dict[str, Any]]
) -> None:
    first = train("cartpole", "stop.env_steps=10000", "seed=3")
    first.wait_for_env_steps(2_000)
    killed = first.pid("learner")
    os.kill(killed, signal.SIGKILL)
    first.wait_for(lambda: first.pid("learner") not in (0, killed))
    first.wait_for_env_steps(5_000)
    file = first.directory / "run.yaml"
    text = file.read_text()
    assert "env_steps: 10000" in text
    file.write_text(text.replace("env_steps: 10000", "env_steps: 12000"))  # As a repeated `prepare` does.
    first.process.send_signal(signal.SIGINT)
    first.process.communicate()
    before = first.rows()
    assert stopped_by(first) == "signal"

    second = train("stop.env_steps=16000", "--resume", str(first.directory), directory=first.directory)
    result, rows = second.finish(), second.rows()
    assert result["stopped_by"] == "env_steps"
    assert result["env_steps"] >= 16_000
    assert result["episode_return_mean"] > 60
    assert all(key in rows[0] for key in KEYS)
    assert rows[: len(before)] == before
    assert rows[len(before)]["learning_rate"] == pytest.approx(1e-3 * (1 - before[-1]["env_steps"] / 16_000), rel=0.2)
    assert_counters_never_go_back(rows)
    assert max(row["staleness_max"] for row in rows) <= 1
    assert_trained(rows, ITERATION_STEPS, deaths=2)
    for name in ("run.yaml", "curve.png", "logs/actor-0.log", "logs/learner.log"):
        assert (second.directory / name).stat().st_size > 0
    assert not any(is_alive(second, role) for role in ROLES)

    found = marks(second.directory)
    last = {axis: before[-1][axis] for axis in ("iteration", "env_steps")}
    how, again = [restart["what"] for restart in found["restarts"]]
    assert (how, again) == ("learner started again (killed by SIGKILL)", "learner started again")
    assert last.items() <= found["restarts"][1].items()
    (change,) = found["config_changes"]
    assert change["keys"] == [{"key": "stop.env_steps", "old": 10_000, "new": 16_000}]
    assert last.items() <= change.items()

    evaluated = evaluate(second.directory, 10)
    assert evaluated["return_mean"] > 60
    same = ("policy_version", "return_mean", "length_mean")
    again = evaluate(exported(second), 10)
    assert {name: again[name] for name in same} == {name: evaluated[name] for name in same}


def stopped_by(fleet: Fleet) -> str:
    """Why the run that wrote the last checkpoint ended."""
    return str(json.loads((fleet.directory / "checkpoints" / "latest" / "state.json").read_text())["stopped_by"])


def exported(fleet: Fleet) -> Path:
    """The newest version, exported from the stopped run."""
    target = fleet.directory / "exported"
    command = [*COMMAND, "parameters", "export", str(target), str(fleet.directory)]
    subprocess.run(command, check=True, capture_output=True)
    return target


def is_alive(fleet: Fleet, role: str) -> bool:
    pid = fleet.pid(role)
    return pid != 0 and Path(f"/proc/{pid}").exists()
