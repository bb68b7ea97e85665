"""Roles that start in any order, and actors that come and go: only throughput changes."""

import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.role_process import wait_for

from harness.faulty_fleet import env_steps, faulty_fleet
from harness.replaying import serving
from minefleet.config import EnvConfig, FleetConfig, RolloutConfig, ServicesConfig, WorkerConfig
from minefleet.launch.run_directory_setup import prepare

pytestmark = pytest.mark.fleet

ROLES = ("parameters", "replay", "learner", "actor")
ITERATIONS = 2
STEPS = 200


def test_a_run_begins_whichever_role_comes_last(tmp_path: Path) -> None:
    begin(tmp_path, ("learner", "actor", "parameters", "replay"))


def begin(directory: Path, order: Sequence[str], pause_s: float = 0.0) -> None:
    """Starts the roles one after the other, each once the one before serves, and waits until the run goes on well."""
    worker = WorkerConfig(num_envs=2, envs_per_process=2)
    config = FleetConfig(
        env=EnvConfig(id="CartPole-v1"),
        rollout_config=RolloutConfig(fragment_length=16, worker_config=worker),
        services=ServicesConfig(drain_s=1.0),
    )
    run = prepare(config, directory / "run")
    with ExitStack() as stack:
        for role in order:
            server = stack.enter_context(serving(run, role))
            server.outlive(pause_s)
        wait_for(lambda: run.metrics.exists() and len(run.metrics.read_text().splitlines()) >= ITERATIONS)


def test_actors_that_come_and_go_lose_and_double_no_step(tmp_path: Path) -> None:
    come_and_go(tmp_path, 2, 2)


def come_and_go(directory: Path, some: int, many: int) -> None:
    """Takes all but one of some actors away, by kill and by SIGTERM in turn, and starts others until there are many."""
    worker = WorkerConfig(num_envs=2, max_consecutive_failures=50)
    with faulty_fleet(directory, {"exception": 0.005}, worker, step_s=0.002) as fleet:
        with ExitStack() as stay:
            first = stay.enter_context(fleet.starting())
            with ExitStack() as leave:
                others = [leave.enter_context(fleet.starting(index)) for index in range(1, some)]
                for actor in (first, *others):
                    wait_for(lambda actor=actor: env_steps(actor) >= STEPS)  # type: ignore[misc]  # Bound at once.
                for actor in others[::2]:
                    os.kill(actor.pid, signal.SIGKILL)
            more = [stay.enter_context(fleet.starting(index)) for index in range(1, many)]
            for actor in (first, *more):
                wanted = env_steps(actor) + STEPS
                wait_for(lambda actor=actor, wanted=wanted: env_steps(actor) >= wanted)  # type: ignore[misc]
        assert fleet.left_behind() == set()
        found = fleet.audit(killed=True)
    assert found.faults == []
    assert found.steps >= (1 + many) * STEPS
