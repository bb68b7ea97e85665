"""Limits of replay and environments of actors that are set while a fleet trains, and roles that die before it."""

import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import COMMAND, Fleet, assert_counters_never_go_back
from tests.mortal_policy import ACTOR_MOMENT

from minefleet.monitoring.journal import read_whole_journal
from minefleet.monitoring.learner_requests_in_journal import ask
from minefleet.monitoring.live_settings_by_iteration import set_lines, settings_at
from minefleet.monitoring.status import read_status
from minefleet.rpc.parameters_client import ParametersClient
from minefleet.runs.checkpoint_files import read_policy
from minefleet.runs.run_yaml import read_run

pytestmark = pytest.mark.fleet

BUFFER = "rollout_config.replay_buffer_config."
REUSE, STALENESS = f"{BUFFER}max_reuse", f"{BUFFER}max_staleness"
NUM_ENVS = "rollout_config.worker_config.num_envs"
CONFIG = {REUSE: 2, STALENESS: 1, NUM_ENVS: 4}
MORTAL = f"policy.generator={Path(__file__).parent}/mortal_policy.py:policy_generator"


def sample(fleet: Fleet, role: str, name: str) -> float:
    """A gauge of a role; NaN while it is not up."""
    card = fleet.directory / "roles" / f"{role}.json"
    try:
        with urllib.request.urlopen(f"http://{json.loads(card.read_text())['metrics_address']}/metrics") as answer:
            found = re.search(rf"^{name} (\S+)$", answer.read().decode(), re.MULTILINE)
    except OSError:
        found = None
    return float(found[1]) if found else float("nan")


def set_keys(fleet: Fleet, **values: int) -> int:
    """Runs `minefleet set` to its end; returns the iteration from which it holds."""
    names = {"reuse": REUSE, "staleness": STALENESS, "num_envs": NUM_ENVS}
    words = [f"{names[name]}={value}" for name, value in values.items()]
    done = subprocess.run([*COMMAND, "set", str(fleet.directory), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    return int(set_lines(read_whole_journal(fleet.directory))[-1]["iteration"])


def wait_for_iteration(fleet: Fleet, iteration: int) -> None:
    fleet.wait_for(lambda: bool(fleet.rows()) and bool(fleet.rows()[-1]["iteration"] > iteration))


def slots(fleet: Fleet) -> float:
    return next((one.stats.get("slots", 0) for one in read_status(fleet.directory).roles if one.name == "actor-0"), 0)


def assert_versions_carry_what_the_journal_says(fleet: Fleet) -> None:
    """Each version that parameters holds has the settings of the iteration that starts from it."""
    lines, run = read_whole_journal(fleet.directory), read_run(fleet.directory)
    with closing(ParametersClient(run.config.services.parameters.address)) as client:
        versions = client.versions()
    assert versions
    for version in versions:
        assert json.loads(version.settings or "{}") == settings_at(lines, version.iteration + 1), version


def test_roles_killed_before_they_follow_settings_work_by_them_from_their_iteration_on(
    train: Callable[..., Fleet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINEFLEET_TEST_DEATHS", str(tmp_path))
    keys = [f"{key}={value}" for key, value in CONFIG.items()]
    fleet = train("cartpole", MORTAL, *keys, "stop.env_steps=10000000")
    fleet.wait_for_env_steps(1_000)

    def kill_at(moment: str, role: str, key: str = "", **values: int) -> None:
        """Sets keys, of which the role dies at a moment; waits until training has gone on under them."""
        before = fleet.pid(role)
        (tmp_path / moment).write_text(key)
        iteration = set_keys(fleet, **values)
        fleet.wait_for(lambda: fleet.pid(role) not in (0, before))
        assert not (tmp_path / moment).exists()
        wait_for_iteration(fleet, iteration + 2)
        assert_versions_carry_what_the_journal_says(fleet)

    kill_at("after an answer", "learner", reuse=1)
    kill_at("before a version with settings", "learner", STALENESS, staleness=3, num_envs=3)
    fleet.wait_for(lambda: slots(fleet) == 3)
    kill_at(ACTOR_MOMENT, "actor-0", num_envs=5)
    fleet.wait_for(lambda: slots(fleet) == 5)

    iteration = set_keys(fleet, reuse=3, staleness=0)
    fleet.wait_for(lambda: sample(fleet, "replay", "minefleet_replay_max_reuse_uses") == 3)
    before = fleet.pid("replay")
    os.kill(before, signal.SIGKILL)
    fleet.wait_for(lambda: fleet.pid("replay") not in (0, before))
    wait_for_iteration(fleet, iteration + 2)
    assert sample(fleet, "replay", "minefleet_replay_max_staleness_versions") == 0
    fleet.process.send_signal(signal.SIGINT)
    fleet.process.communicate()

    lines = read_whole_journal(fleet.directory)
    for row in fleet.rows():
        values = CONFIG | settings_at(lines, row["iteration"])
        assert row["staleness_max"] <= values[STALENESS], row
        assert row["reuse_mean"] <= values[REUSE], row
    assert_counters_never_go_back(fleet.rows())
    fsck = subprocess.run(
        [*COMMAND, "replay", "fsck", str(fleet.directory)], capture_output=True, text=True, check=False
    )
    assert fsck.returncode == 0, fsck.stdout


def test_a_serial_run_makes_its_environments_anew_at_the_iteration_that_another_run_did(
    train: Callable[..., Fleet], tmp_path: Path
) -> None:
    keys = ("cartpole", "--serial", "train_config.num_iterations=10", "seed=4", f"{NUM_ENVS}=4")
    first = train(*keys, directory=tmp_path / "first")
    first.wait_for(lambda: len(first.rows()) >= 2)
    os.kill(first.pid("learner"), signal.SIGSTOP)  # So that it cannot end before it is asked.
    ask(first.directory, set={NUM_ENVS: 2})
    os.kill(first.pid("learner"), signal.SIGCONT)
    first.finish()
    again = train(*keys, "--repeat", str(first.directory), directory=tmp_path / "again")
    again.finish()
    one, same = (read_policy((fleet.directory / "checkpoints" / "latest").resolve()) for fleet in (first, again))
    assert all(np.array_equal(one[name], same[name]) for name in one)
    streams = [line.split(",") for line in (again.directory / "episodes.csv").read_text().splitlines()]
    place = streams[0].index("stream")
    incarnations = {row[place].rpartition("-")[0]: set[str]() for row in streams[1:]}
    for row in streams[1:]:
        incarnations[row[place].rpartition("-")[0]].add(row[place])
    assert [len(mine) for mine in incarnations.values()] == [4, 2]
