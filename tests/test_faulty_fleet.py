"""Actors over environments that fail in every way, and every step that they stored."""

import os
import random
import signal
from pathlib import Path

import pytest

from harness.faulty import STEP_FAULTS
from harness.faulty_fleet import FaultyFleet, env_steps, faulty_fleet
from minefleet.config import WorkerConfig

pytestmark = pytest.mark.fleet

TICK_S = 0.1
OFTEN = dict.fromkeys(STEP_FAULTS, 0.002) | {"error": 0.004, "reset_exception": 0.03, "reset_hang": 0.03}
OFTEN |= {"slow_start": 0.1, "start_exception": 0.1}
WORKER = WorkerConfig(num_envs=8, step_timeout_s=1.0, reset_timeout_s=2.0, max_consecutive_failures=50)
ENV = {"step_s": 0.002, "start_s": 0.2, "episode_length": 20}


def act(fleet: FaultyFleet, steps: int) -> None:
    """Lets an actor take so many steps."""
    with fleet.acting() as actor:
        while env_steps(actor) < steps:
            actor.outlive(TICK_S)


def test_failing_environments_store_no_faulty_step_and_leave_no_process(tmp_path: Path) -> None:
    with faulty_fleet(tmp_path, OFTEN, WORKER, **ENV) as fleet:
        act(fleet, 1_500)
        assert fleet.left_behind() == set()
        found = fleet.audit()
    assert found.faults == []
    assert found.steps >= 1_500
    assert found.failures.total() > 10
    assert len(found.failures) > 3


def test_actors_that_are_killed_leave_no_process_and_no_step_twice(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, 2)


def kill_again_and_again(directory: Path, kills: int) -> None:
    """Kills actors at random moments, the start and the first steps included; the last one may end."""
    rng = random.Random(0)
    with faulty_fleet(directory, OFTEN, WORKER, **ENV) as fleet:
        for _ in range(kills):
            with fleet.starting() as actor:
                actor.outlive(rng.uniform(0.0, 5.0))
                os.kill(actor.pid, signal.SIGKILL)
            assert fleet.left_behind() == set()
        act(fleet, 200)
        assert fleet.left_behind() == set()
        found = fleet.audit(killed=True)
    assert found.faults == []
    assert found.steps >= 200
