"""Rollbacks of whole fleets, which are killed in the middle of them."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import COMMAND, Fleet, assert_counters_never_go_back
from tests.mortal_policy import MOMENTS
from tests.run_history import check_history
from tests.test_ranks_of_fleets import MORTAL, TWO, assert_balanced

from minefleet.monitoring.journal import read_whole_journal
from minefleet.monitoring.learner_requests_in_journal import ask
from minefleet.monitoring.live_settings_by_iteration import settings_at
from minefleet.runs.checkpoint_files import read_state
from minefleet.watch.watched_runs import marks

Train = Callable[..., Fleet]
KEPT = ("train_config.save_interval=5", "train_config.keep_interval=5", "seed=4")
"""Each fifth checkpoint stays."""
RATE = "train_config.learning_rate"


def rollback(fleet: Fleet, *arguments: str) -> tuple[int, str]:
    """Runs `minefleet rollback`; returns its exit code and what it says."""
    command = [*COMMAND, "rollback", str(fleet.directory), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def journal(fleet: Fleet, event: str) -> list[dict[str, Any]]:
    return [line for line in read_whole_journal(fleet.directory) if line["event"] == event]


@pytest.mark.fleet
@pytest.mark.parametrize("moment", [moment for moment in MOMENTS if moment.startswith("rollback")])
def test_a_fleet_that_is_killed_inside_a_rollback_has_gone_back_or_does_so_at_its_next_start(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.setenv("MINEFLEET_TEST_DEATHS", str(tmp_path))
    fleet = train("cartpole", MORTAL, *KEPT, "train_config.num_iterations=25")
    wait_for_iteration(fleet, 10)
    ask(fleet.directory, set={RATE: 0.01})
    fleet.wait_for(lambda: bool(journal(fleet, "set")) and len(fleet.rows()) > journal(fleet, "set")[0]["iteration"])
    (tmp_path / moment).write_text("fleet")
    ask(fleet.directory, rollback="5")
    fleet.process.wait()
    assert not (tmp_path / moment).exists()

    second = train("--resume", str(fleet.directory), directory=fleet.directory)
    assert second.finish()["stopped_by"] == "num_iterations"
    check_history(fleet.directory)
    assert_balanced(fleet.directory)
    (line,) = journal(fleet, "rollback")
    assert line["iteration"] == 5
    assert settings_at(read_whole_journal(fleet.directory), 25) == {}
    undone = {read_state(path).version for path in (fleet.directory / "checkpoints" / "set-aside").iterdir()}
    assert undone and all(line["version"] < version < fleet.rows()[5]["policy_version"] for version in undone)
    assert [row["learning_rate"] < 0.0011 for row in fleet.rows()] == [True] * 25


def test_a_rolled_back_run_goes_on_from_there_while_it_trains_and_after_its_end(train: Train) -> None:
    fleet = train("cartpole", *KEPT, "train_config.num_iterations=60")
    wait_for_iteration(fleet, 12)
    code, said = rollback(fleet, "--to", "7")
    assert code == 2 and "there are those of version 0 (iteration 0), 6 (iteration 5), 11 (iteration 10)" in said
    code, said = rollback(fleet, "--to", "6", "--why", "too greedy")
    assert code == 0 and said.startswith("goes back to version 6, iteration 5; what came until iteration ")
    _, errors = fleet.process.communicate()
    assert fleet.process.returncode == 0, errors
    assert (
        "learner goes back to an older checkpoint; it starts again in 0.5 s. Its last words:" in errors
        and "died" not in errors
        and "a fault of minefleet's own" not in errors
    )
    assert [mark["what"] for mark in marks(fleet.directory)["restarts"]] == [
        "learner started again (rolled back: too greedy)"
    ]

    code, said = rollback(fleet, "--to", "10")
    assert code == 0 and said.endswith("00000010 at the next start; no learner runs now\n")
    again = train("--resume", str(fleet.directory), directory=fleet.directory)
    assert again.finish()["stopped_by"] == "num_iterations"
    assert [line["iteration"] for line in journal(fleet, "resume")] == [5, 10]
    assert [row["iteration"] for row in fleet.rows()] == list(range(1, 61))
    assert_counters_never_go_back(fleet.rows())


@pytest.mark.fleet
@pytest.mark.parametrize("how", ["--serial", TWO])
def test_a_serial_run_and_one_of_two_ranks_roll_back_without_a_death(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("MINEFLEET_TEST_DEATHS", str(tmp_path))
    fleet = train("cartpole", MORTAL, *KEPT, "train_config.num_iterations=15", how)
    wait_for_iteration(fleet, 8)
    ask(fleet.directory, rollback="5")
    _, errors = fleet.process.communicate()
    assert fleet.process.returncode == 0 and "died" not in errors, errors
    assert [line["iteration"] for line in journal(fleet, "resume")] == [5]
    check_history(fleet.directory)


def wait_for_iteration(fleet: Fleet, iteration: int) -> None:
    fleet.wait_for(lambda: bool(fleet.rows()) and fleet.rows()[-1]["iteration"] >= iteration)
