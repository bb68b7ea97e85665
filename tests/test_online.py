"""Runs that are started from Python, as processes, on CartPole."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.role_process import TIMEOUT_S, wait_for, wait_for_deaths

from minefleet.launch.rollout_manager_handle import PID_FILE
from minefleet.online import get_rollout_manager

pytestmark = pytest.mark.fleet

SCRIPT = """
import json, logging, sys, threading
import gymnasium
from minefleet.online import start_rolloutmanager, start_trainer

def env_generator():
    return gymnasium.make("CartPole-v1")

def settings(env_steps, detach):
    return {
        "detach_rollout_manager": detach,
        "policy": {"hidden_size": 8},
        "rollout_config": {"fragment_length": 16, "worker_config": {"num_envs": 4, "envs_per_process": 4}},
        "train_config": {"batch_size_per_gpu": 4, "batches_per_iteration": 1, "gradient_accumulation": 1},
        "stop": {"env_steps": env_steps},
    }

if __name__ == "__main__":
    what, env_steps, detach = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "detach"
    logging.basicConfig(level="INFO")
    cfg = settings(env_steps, detach)
    if "m" in what:
        print(start_rolloutmanager(None, env_generator, cfg).pid, flush=True)
    for _ in range(what.count("t")):
        print(json.dumps(start_trainer(None, env_generator, cfg, {"online": cfg})), flush=True)
    if "w" in what:
        threading.Event().wait()
"""
RUN = Path("runs/online")


class Program:
    """A user's program in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "program.py"
        self.path.write_text(SCRIPT)
        self.run = folder / RUN
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(self.path), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
        )
        self.started.append(process)
        return process

    def finish(self, *arguments: str) -> list[Any]:
        """Its output, line by line, as JSON."""
        process = self.start(*arguments)
        out, errors = process.communicate()
        assert process.returncode == 0, errors
        return [json.loads(line) for line in out.splitlines()]

    def rows(self) -> list[dict[str, Any]]:
        path = self.run / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines() if line] if path.exists() else []

    def role(self, name: str) -> int:
        card = self.run / "roles" / f"{name}.json"
        return int(json.loads(card.read_text())["pid"]) if card.exists() else 0

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()
        if (self.run / PID_FILE).exists():
            get_rollout_manager(self.run).stop()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path)
    yield made
    made.end()


def await_end(*pids: int) -> None:
    wait_for_deaths(*pids)


def test_two_trainers_follow_each_other_on_one_detached_fleet_and_the_second_goes_on(program: Program) -> None:
    keeper, first = program.finish("mt", "400", "detach")
    actor, learner = program.role("actor-0"), program.role("learner")
    assert psutil.pid_exists(keeper) and psutil.pid_exists(actor) and not learner
    manager = get_rollout_manager(program.run)
    assert manager.pid == keeper
    assert manager.newest_version >= first["iteration"]
    (second,) = program.finish("t", "900", "detach")
    assert (first["stopped_by"], second["stopped_by"]) == ("env_steps", "env_steps")
    assert second["iteration"] > first["iteration"]
    assert program.role("actor-0") == actor
    assert [row["iteration"] for row in program.rows()] == list(range(1, second["iteration"] + 1))
    assert (program.run / "whole_config.txt").read_text().startswith("online:\n  detach_rollout_manager: true\n")
    manager.stop()
    await_end(keeper, actor)
    assert manager.pid == 0


@pytest.mark.soak
def test_fleet_that_is_not_detached_ends_with_its_trainer(program: Program) -> None:
    keeper, result = program.finish("mt", "300", "stay")
    assert result["stopped_by"] == "env_steps"
    await_end(keeper)
    assert not any((program.run / "roles").glob("*.json"))


def kill_the_program(program: Program, detach: str) -> tuple[list[int], list[int]]:
    """Kills a program in the middle of its training; returns its fleet's processes, and its learner's."""
    process = program.start("mt", "1000000", detach)
    wait_for(lambda: len(program.rows()) > 2 or process.poll() is not None)
    assert process.poll() is None, process.communicate()[1]
    fleet = [get_rollout_manager(program.run).pid, *map(program.role, ("actor-0", "replay", "parameters"))]
    learner = program.role("learner")
    process.kill()
    process.communicate()
    return fleet, [learner]


def test_a_killed_program_takes_its_fleet_and_its_learner_along(program: Program) -> None:
    fleet, learner = kill_the_program(program, "stay")
    assert all(fleet) and all(learner)
    await_end(*fleet, *learner)


def test_a_killed_program_leaves_a_detached_fleet_for_the_next_trainer(program: Program) -> None:
    fleet, learner = kill_the_program(program, "detach")
    await_end(*learner)
    assert all(map(psutil.pid_exists, fleet))
    before = program.rows()[-1]["env_steps"]
    (result,) = program.finish("t", str(before + 300), "stay")
    assert result["env_steps"] >= before + 300
    await_end(*fleet)


@pytest.mark.soak
def test_a_trainer_without_a_fleet_is_told_to_start_one(program: Program) -> None:
    program.finish("mt", "200", "stay")
    process = program.start("t", "400", "stay")
    assert "start_rolloutmanager first" in process.communicate()[1]
    assert process.returncode != 0


@pytest.mark.soak
def test_a_second_trainer_at_the_same_time_is_refused(program: Program) -> None:
    process = program.start("mt", "1000000", "detach")
    wait_for(lambda: bool(program.rows()) or process.poll() is not None)
    other = program.start("t", "1000000", "detach")
    assert "is in use by another launcher" in other.communicate()[1]
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate()
    assert json.loads(out.splitlines()[-1])["stopped_by"] == "signal", errors


@pytest.mark.soak
def test_trainer_ends_when_its_fleet_ends(program: Program) -> None:
    process = program.start("mt", "1000000", "stay")
    wait_for(lambda: bool(program.rows()) or process.poll() is not None)
    os.kill(get_rollout_manager(program.run).pid, signal.SIGTERM)
    assert "the rollout manager has ended" in process.communicate(timeout=TIMEOUT_S)[1]


def test_a_program_that_starts_a_fleet_at_the_top_of_its_file_starts_only_one(program: Program) -> None:
    start = "from minefleet.online import start_rolloutmanager\nstart_rolloutmanager(None, env_generator, {})\n"
    program.path.write_text(f"def env_generator():\n    pass\n\n{start}")
    assert 'put that below `if __name__ == "__main__":`' in program.start().communicate()[1]
    assert not program.run.exists()
