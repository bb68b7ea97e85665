"""Keys that are changed while whole fleets train: real processes, real kills."""

import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import COMMAND, Fleet, assert_counters_never_go_back
from tests.mortal_policy import MOMENTS

from minefleet.monitoring.journal import read_whole_journal
from minefleet.monitoring.learner_requests_in_journal import answers_in, unanswered
from minefleet.monitoring.live_settings_by_iteration import set_lines, settings_at
from minefleet.runs.checkpoint_files import read_policy
from minefleet.watch.watched_runs import marks

pytestmark = pytest.mark.fleet

Train = Callable[..., Fleet]
LR, NORM, STEADY = "train_config.learning_rate", "train_config.max_grad_norm", "train_config.anneal_lr_linearly=false"
MORTAL = f"policy.generator={Path(__file__).parent}/mortal_policy.py:policy_generator"
SAID = re.compile(r"(\S+): (\S+) → (\S+) from iteration (\d+) on")


def set_keys(fleet: Fleet, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs `minefleet set` to its end."""
    command = [*COMMAND, "set", str(fleet.directory), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def assert_rows_follow_the_journal(fleet: Fleet, first_rate: float) -> None:
    """Each row has the learning rate that a fold of the journal says."""
    lines = read_whole_journal(fleet.directory)
    assert unanswered(lines) == []
    for row in fleet.rows():
        assert row["learning_rate"] == settings_at(lines, row["iteration"]).get(LR, first_rate), row["iteration"]


def test_a_fleet_takes_over_a_rate_and_a_bound_and_refuses_what_cannot_be(train: Train) -> None:
    fleet = train("cartpole", STEADY, f"{LR}=0.002", "stop.env_steps=1000000", "seed=4")
    fleet.wait_for_env_steps(1_000)
    done = set_keys(fleet, f"{LR}=5e-4", "--why", "slower")
    said = SAID.fullmatch(done.stdout.strip())
    assert done.returncode == 0 and said is not None, done
    assert said.groups()[:3] == (LR, "0.002", "0.0005")
    for wrong, reason in ((f"{LR}=-1", "must be > 0"), ("train_config.discount=0.9", "cannot change while a run goes")):
        refused = set_keys(fleet, wrong)
        assert refused.returncode == 2 and reason in refused.stderr and not refused.stdout
    iteration = int(said[4])
    fleet.wait_for(lambda: bool(fleet.rows()[-1]["iteration"] > iteration))
    assert set_keys(fleet, "stop.env_steps=2000").returncode == 0
    assert fleet.finish()["stopped_by"] == "env_steps"
    assert_rows_follow_the_journal(fleet, 0.002)
    (row,) = (row for row in fleet.rows() if LR in row.get("changed_keys", {}))
    assert (row["iteration"], row["changed_keys"]) == (iteration, {LR: 5e-4})
    changes = [change["keys"] for change in marks(fleet.directory)["config_changes"]]
    assert changes[0] == [{"key": LR, "old": 0.002, "new": 5e-4}] and len(changes) == 2

    bound = fleet.rows()[-1]["env_steps"] + 1_500
    later = set_keys(fleet, f"stop.env_steps={bound}")
    assert later.stdout == f"stop.env_steps: {bound} from the next start on; no learner runs now\n"
    again = train(f"{LR}=0.001", "--resume", str(fleet.directory), directory=fleet.directory)
    assert again.finish()["env_steps"] >= bound
    assert_rows_follow_the_journal(again, 0.002)
    assert again.rows()[-1]["learning_rate"] == 0.001


def test_a_learner_that_is_killed_around_its_answers_gives_each_once_and_trains_by_it(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINEFLEET_TEST_DEATHS", str(tmp_path))
    keys = (MORTAL, STEADY, f"{LR}=0.002", "stop.env_steps=1000000", "train_config.num_workers=2")
    fleet = train("cartpole", *keys)
    for number, moment in enumerate(moment for moment in MOMENTS if "answer" in moment):
        fleet.wait_for_env_steps(1_000 * (number + 1))
        killed = fleet.pid("learner")
        (tmp_path / moment).touch()
        # Ranks that trained by different norms would find that their weights differ, and end.
        assert set_keys(fleet, f"{LR}={0.001 * (number + 3)}", f"{NORM}={0.1 * (number + 1)}").returncode == 0
        fleet.wait_for(lambda before=killed: fleet.pid("learner") not in (0, before))  # type: ignore[misc]
        assert not (tmp_path / moment).exists()
    answered = [*answers_in(read_whole_journal(fleet.directory)).values()][-1]
    fleet.wait_for(lambda: bool(fleet.rows()) and bool(fleet.rows()[-1]["iteration"] > answered["iteration"] + 2))
    fleet.process.send_signal(signal.SIGINT)
    fleet.process.communicate()

    lines = read_whole_journal(fleet.directory)
    assert [line["keys"][0]["new"] for line in set_lines(lines)] == [0.003, 0.004, 0.005]
    assert sum(line["event"] == "set" for line in lines) == 3
    assert_rows_follow_the_journal(fleet, 0.002)
    assert_counters_never_go_back(fleet.rows())
    assert "the weights differ between ranks" not in (fleet.directory / "logs" / "learner.log").read_text()


def final_weights(fleet: Fleet) -> dict[str, Any]:
    return read_policy((fleet.directory / "checkpoints" / "latest").resolve())


def test_a_serial_run_with_the_journal_of_another_ends_at_the_same_weights(train: Train, tmp_path: Path) -> None:
    keys = ("cartpole", "--serial", "train_config.num_iterations=12", "seed=4")
    first = train(*keys, directory=tmp_path / "first")
    first.wait_for(lambda: len(first.rows()) >= 2)
    os.kill(first.pid("learner"), signal.SIGSTOP)  # So that it cannot end before it is asked.
    asking = subprocess.Popen([*COMMAND, "set", str(first.directory), f"{LR}=0.01"], stdout=subprocess.PIPE, text=True)
    first.wait_for(lambda: bool(unanswered(read_whole_journal(first.directory))))
    os.kill(first.pid("learner"), signal.SIGCONT)
    said = SAID.fullmatch(asking.communicate()[0].strip())
    first.finish()
    assert said is not None and int(said[4]) <= 12
    again = train(*keys, "--repeat", str(first.directory), directory=tmp_path / "again")
    other = train(*keys, directory=tmp_path / "other")
    again.finish()
    other.finish()
    assert [row["learning_rate"] for row in again.rows()] == [row["learning_rate"] for row in first.rows()]
    one, same, without = (final_weights(fleet) for fleet in (first, again, other))
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert not all(np.array_equal(one[name], without[name]) for name in one)
