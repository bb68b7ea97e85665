"""Learners of two ranks in whole fleets: real processes, real kills, and torchrun."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.conftest import COMMAND, Fleet, assert_counters_never_go_back, assert_trained

from minefleet.runs.run_yaml import read_run
from minefleet_replay.engine.memory_state import read_state
from minefleet_replay.state.limits import limits_of
from minefleet_replay.storage.open_rocksdb import open_store

pytestmark = pytest.mark.fleet

Train = Callable[..., Fleet]
TWO = "train_config.num_workers=2"
MORTAL = f"policy.generator={Path(__file__).parent}/mortal_policy.py:policy_generator"
ITERATION_STEPS = 2 * 8 * 32
"""Of the preset, with two ranks."""
ROLES = ("parameters", "replay", "actor")


def assert_balanced(directory: Path) -> None:
    """Reads the ledger of the stopped replay, which recounts its store and refuses one that does not add up."""
    run = read_run(directory)
    limits = limits_of(run, 0)
    store = open_store(run.shards[0].store, max_bytes=limits.max_bytes, fresh=False)
    try:
        ledger = read_state(store, limits).ledger
    finally:
        store.close()
    assert ledger.is_balanced
    assert all(account.trained > 0 and account.leased == 0 for account in ledger)


def are_renewed(fleet: Fleet, old: set[int]) -> bool:
    """Whether both ranks are other processes than these."""
    return not old & {fleet.pid("learner"), fleet.pid("learner-1")}


def test_a_killed_rank_takes_the_other_with_it_and_both_go_on_from_the_checkpoint(train: Train) -> None:
    fleet = train("cartpole", TWO, "stop.env_steps=10000", "seed=4")
    for env_steps, name, other in ((3_000, "learner-1", "learner"), (6_000, "learner", "learner-1")):
        fleet.wait_for_env_steps(env_steps)
        killed, survivor = fleet.pid(name), fleet.pid(other)
        os.kill(killed, signal.SIGKILL)
        fleet.wait_for(partial(are_renewed, fleet, {killed, survivor}))
    result = fleet.finish()

    assert result["stopped_by"] == "env_steps"
    rows = fleet.rows()
    assert_counters_never_go_back(rows)
    assert_trained(rows, ITERATION_STEPS, deaths=2)
    assert_balanced(fleet.directory)


def test_rank_0_may_die_between_publish_ack_and_checkpoint(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINEFLEET_TEST_DEATHS", str(tmp_path))
    fleet = train("cartpole", TWO, MORTAL, "stop.env_steps=10000", "train_config.save_interval=2")
    for env_steps, moment in ((2_000, "between publish and ack"), (5_000, "between ack and checkpoint")):
        fleet.wait_for_env_steps(env_steps)
        death, killed, survivor = tmp_path / moment, fleet.pid("learner"), fleet.pid("learner-1")
        death.touch()
        fleet.wait_for(partial(are_renewed, fleet, {killed, survivor}))
        assert not death.exists()
    assert fleet.finish()["stopped_by"] == "env_steps"

    rows = fleet.rows()
    assert_counters_never_go_back(rows)
    assert_trained(rows, ITERATION_STEPS, deaths=2)
    assert_balanced(fleet.directory)


@pytest.mark.soak
def test_a_rank_that_hangs_is_noticed_and_all_start_again(train: Train) -> None:
    fleet = train("cartpole", TWO, "stop.env_steps=20000", "train_config.rank_timeout_s=20")
    fleet.wait_for_env_steps(5_000)
    hanging = fleet.pid("learner-1")
    os.kill(hanging, signal.SIGSTOP)
    fleet.wait_for(lambda: fleet.pid("learner-1") not in (hanging, 0))
    assert fleet.finish()["stopped_by"] == "env_steps"
    assert_counters_never_go_back(fleet.rows())


def test_torchrun_runs_the_ranks_and_its_signal_drains_them(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    settings = ["cartpole", TWO, "--run-dir", str(directory)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    started = [[*torchrun, "-m", "minefleet", "serve", "learner", *settings]]
    started += [[*COMMAND, "serve", role, *settings] for role in ROLES]
    processes = list[subprocess.Popen[str]]()
    try:
        for number, command in enumerate(started):
            with (tmp_path / f"{number}.log").open("w") as log:
                processes.append(subprocess.Popen(command, stdout=log, stderr=log, text=True, cwd=tmp_path))
        ranks = Fleet(processes[0], directory)
        ranks.wait_for_env_steps(3_000)
        processes[0].send_signal(signal.SIGTERM)
        processes[0].wait()
    finally:
        for process in processes:
            process.terminate()
        codes = [process.wait() for process in processes]
    result = json.loads((directory / "result.json").read_text())
    assert result["stopped_by"] == "signal"
    assert result["iteration"] == ranks.rows()[-1]["iteration"]
    assert codes[1:] == [0, 0, 0]
    assert_counters_never_go_back(ranks.rows())
