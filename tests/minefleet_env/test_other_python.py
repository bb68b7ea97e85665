"""Environments of old gym, played by an interpreter of their own."""

import json
import os
import venv
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import Fleet
from tests.role_process import wait_for_deaths

from minefleet.config import EnvConfig, WorkerConfig
from minefleet.config.load import load
from minefleet.core.errors import ConfigError
from minefleet.core.schema import Schema
from minefleet.launch.env_policy_check import describe_environment
from minefleet.runs.run_yaml import read_run
from minefleet_actor.pool import EnvPool, InlinePool, Kind, Pool, Ready
from minefleet_actor.pool.episode_seed import episode_seed

EXAMPLE = Path(__file__).parents[2] / "examples" / "old_gym.py"
SEED, ACTOR = 5, 1
OURS = ("minefleet", "minefleet_actor", "gymnasium", "torch", "grpc")
HALL = f"""
import importlib.util
import os

import gym
import numpy as np
from gym import spaces

from neighbour import LENGTH


class Hall(gym.Env):
    def __init__(self, broken=False):
        self.observation_space = spaces.Dict(
            {{"place": spaces.Box(0.0, 1.0, (LENGTH,), np.float32), "lamp": spaces.Discrete(9)}}
        )
        self.action_space = spaces.Discrete(2)
        self._broken = broken
        self._random = np.random.RandomState()

    def seed(self, seed=None):
        self._random = np.random.RandomState(seed)

    def reset(self):
        if self._broken:
            raise OSError("the hall is closed")
        self._cell = 0
        return self._obs()

    def step(self, action):
        self._cell = max(0, self._cell + (1 if action == 1 else -1))
        over = self._cell == LENGTH - 1
        found = {{name: float(importlib.util.find_spec(name) is not None) for name in {OURS}}}
        found["numpy"] = float(".".join(np.__version__.split(".")[:2]))
        found["pid"] = float(os.getpid())
        return self._obs(), float(over), over, {{"metrics": found}}

    def _obs(self):
        place = np.zeros(LENGTH, np.float32)
        place[self._cell] = 1
        return {{"place": place, "lamp": int(self._random.randint(9))}}


gym.register("Hall-v3", entry_point=Hall, max_episode_steps=6)


def hall(broken=False):
    return gym.wrappers.TimeLimit(Hall(broken), max_episode_steps=6)
"""


@pytest.fixture
def hall(tmp_path: Path) -> str:
    (tmp_path / "neighbour.py").write_text("LENGTH = 4\n")
    (tmp_path / "halls.py").write_text(HALL)
    return f"{tmp_path / 'halls.py'}:hall"


def described(python: str, *overrides: str) -> dict[str, Any]:
    return describe_environment(load("cartpole", ["env.id=", f"env.python={python}", *overrides]))


def done(pool: Pool) -> Ready:
    """Waits until every slot has its say."""
    ready = pool.wait(60.0)
    assert len(ready.slots) == pool.num_slots
    return ready


def test_an_old_environment_plays_in_its_own_interpreter_as_its_seeds_say(old_python: str, hall: str) -> None:
    config = EnvConfig(generator=hall, python=old_python)
    schema = Schema.from_dict(described(old_python, f"env.generator={hall}")["schema"])
    slots = np.arange(2)
    lamps = [np.random.RandomState(episode_seed(SEED, ACTOR, slot, 0)).randint(9, size=8) for slot in range(2)]
    worker = WorkerConfig(num_envs=2, envs_per_process=2)
    with closing(EnvPool(config, schema, worker, seed=SEED, actor_index=ACTOR)) as pool:
        pool.start()
        pool.reset(slots)
        done(pool)
        assert pool.obs["lamp"].tolist() == [lamp[0] for lamp in lamps]
        for step in range(1, 7):
            pool.step(slots, np.array([0, 1 if step > 3 else 0]))
            ready = done(pool)
            assert (ready.kind == Kind.STEP).all(), ready.failures
            assert pool.obs["lamp"].tolist() == [lamp[step] for lamp in lamps]
    assert ready.truncated.tolist() == [True, False]
    assert ready.terminated.tolist() == [False, True]
    assert ready.reward.tolist() == [0.0, 1.0]
    found = ready.endings[0].metrics
    assert found["numpy"] == 1.23
    assert found["pid"] != os.getpid()
    assert {name: found[name] for name in OURS} == dict.fromkeys(OURS, 0.0)


@pytest.mark.fleet
def test_the_old_example_is_trained_and_evaluated(
    old_python: str, train: Callable[..., Fleet], evaluate: Callable[..., dict[str, Any]]
) -> None:
    keys = ("env.id=", f"env.generator={EXAMPLE}:hall", f"env.python={old_python}", "stop.env_steps=1500")
    fleet = train("cartpole", *keys, "rollout_config.worker_config.envs_per_process=4")
    fleet.finish()
    assert fleet.rows()[-1]["episodes"] > 100
    assert read_run(fleet.directory).config.env.python == old_python
    assert evaluate(fleet.directory, 8)["episodes"] == 8


def test_environment_of_another_python_that_fails_is_quoted_with_its_own_file_and_line(
    old_python: str, hall: str
) -> None:
    with pytest.raises(ConfigError, match=r"(?s)fails:\nTraceback.*halls.py\", line \d+.*OSError: the hall is closed"):
        described(old_python, f"env.generator={hall}", "env.kwargs.broken=true")


def test_env_ids_of_another_python_are_those_of_its_own_gym(
    old_python: str, hall: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert described(old_python, "env.id=halls:Hall-v3")["schema"]["obs"]["place"]["shape"] == [4]
    with pytest.raises(ConfigError, match=r"env\.id 'halls:Hall-v77'.*nearest is Hall-v3"):
        described(old_python, "env.id=halls:Hall-v77")


def bare(tmp_path: Path) -> str:
    """An interpreter without any package."""
    venv.create(tmp_path / "bare", symlinks=True)
    return str(tmp_path / "bare" / "bin" / "python")


def script(tmp_path: Path, line: str) -> str:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("python", "message"),
    [
        (lambda _: "/nowhere/python", r"env\.python=/nowhere/python cannot be started: No such file"),
        (bare, r"env\.python=.*bare/bin/python has no NumPy"),
        (lambda tmp_path: script(tmp_path, "echo 'too old'; exit 3"), "ended with exit code 3: too old"),
        (lambda tmp_path: script(tmp_path, "kill -SEGV $$"), "ended with exit code -11"),
    ],
)
def test_an_interpreter_that_will_not_do_is_refused(
    tmp_path: Path, python: Callable[[Path], str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        described(python(tmp_path), "env.id=CartPole-v1")


@pytest.mark.parametrize(
    "line", ["echo $$ > {pid}; exec sleep 600", "setsid sh -c 'echo $$ > {pid}; exec sleep 600' & wait"]
)
def test_an_environment_that_is_never_made_is_given_up_and_leaves_no_process(tmp_path: Path, line: str) -> None:
    pid = tmp_path / "pid"
    python = script(tmp_path, line.format(pid=pid))
    limits = [
        f"rollout_config.worker_config.{key}=0.5" for key in ("start_timeout_s", "reset_timeout_s", "step_timeout_s")
    ]
    with pytest.raises(ConfigError, match=r"stepped within 1\.5 s"):
        described(python, "env.id=CartPole-v1", *limits)
    wait_for_deaths(int(pid.read_text()))


def test_inline_pool_of_another_interpreter_is_refused(old_python: str) -> None:
    config = EnvConfig(id="CartPole-v1", python=old_python)
    with pytest.raises(ConfigError, match=r"env\.python=.* is another interpreter"):
        InlinePool(config, Schema(obs={}, action={}), WorkerConfig(), seed=0, actor_index=0)


def test_a_serial_run_of_another_interpreter_is_refused_before_anything_is_written(
    train: Callable[..., Fleet], tmp_path: Path
) -> None:
    fleet = train("cartpole", "env.python=python3.8", "--serial")
    errors = fleet.process.communicate()[1]
    assert fleet.process.returncode == 2
    assert "--serial plays in the fleet's own process" in errors
    assert not (tmp_path / "run").exists()
    assert json.dumps(errors).count("\\n") == 1
