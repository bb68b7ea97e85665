"""`minefleet env` as a process, and launches whose environment fails at its very first start."""

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import COMMAND

Done = subprocess.CompletedProcess[str]
Cli = Callable[..., Done]

WORLDS = """
import os
from pathlib import Path

import gymnasium
from gymnasium import spaces


class World(gymnasium.Env):
    observation_space = spaces.Dict({"where": spaces.Box(-2.0, 2.0, (3,)), "mode": spaces.Discrete(4)})
    action_space = spaces.Dict({"turn": spaces.Box(-1.0, 1.0, (2,)), "dig": spaces.MultiDiscrete([2, 3])})
    made = Path(__file__).with_name("made")

    def __init__(self, faulty=False, at_reset=False, once=False):
        self.faulty, self.at_reset, self.step_number, self.episodes = faulty, at_reset, 0, 0
        if once and self.made.exists():
            raise RuntimeError("there can be only one")
        self.made.touch()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.at_reset:
            build_the_world()
        self.step_number, self.episodes = 0, self.episodes + 1
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.step_number += 1
        if self.faulty and self.episodes == 2 and self.step_number == 3:
            raise ValueError("the sky falls")
        return self.observation_space.sample(), 0.5, self.step_number == 5, False, {}


def build_the_world():
    try:
        raise KeyError("no java")
    except KeyError as error:
        raise RuntimeError("no world today") from error


def world(**kwargs):
    return World(**kwargs)
"""


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    (tmp_path / "worlds.py").write_text(WORLDS)
    (tmp_path / "mine.yaml").write_text("env: {generator: 'worlds:world'}\nstop: {env_steps: 1000}\n")

    def run_command(*arguments: str) -> Done:
        return subprocess.run([*COMMAND, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)

    return run_command


def reproduced(cli: Cli, failed: Done) -> Done:
    """The output of the command with which a failed launch ended."""
    last_line = failed.stderr.splitlines()[-1].strip()
    assert last_line.startswith("reproduce it with: minefleet env ")
    return cli(*shlex.split(last_line.removeprefix("reproduce it with: minefleet ")))


@pytest.mark.parametrize("how", [[], ["--inline", "--noop-actions"]])
def test_an_environment_that_works_is_played_and_measured(cli: Cli, how: list[str]) -> None:
    played = cli("env", "mine.yaml", "--steps", "50", "seed=2", *how)
    assert played.returncode == 0, played.stderr
    for line in (
        "observation  mode: discrete, int64 [], of 4",
        "observation  where: box, float32 [3], -2 to 2",
        "action       dig: multi_discrete, int64 [2], of 2, 3",
        "episodes     10: mean return 2.50, mean length 5.0; 10 terminated, 0 truncated",
        "failures     none",
    ):
        assert line in played.stdout.splitlines()
    assert "rewards from 0.5 to 0.5" in played.stdout and "MiB at the end" in played.stdout


@pytest.mark.parametrize("how", [[], ["--inline"]])
def test_env_command_counts_failures_and_shows_the_first_traceback(cli: Cli, how: list[str]) -> None:
    played = cli("env", "mine.yaml", "env.kwargs={faulty: true}", "--steps", "30", *how)
    assert played.returncode == 1
    assert "failures     4: exception 4" in played.stdout
    assert "the first exception, after 7 steps:" in played.stdout
    assert 'raise ValueError("the sky falls")' in played.stdout


def test_an_environment_that_never_works_ends_a_launch_with_its_traceback_and_a_command_that_shows_it(
    cli: Cli, tmp_path: Path
) -> None:
    failed = cli("train", "mine.yaml", "env.kwargs={at_reset: true}")
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr.startswith("minefleet: the environment ")
    assert "Traceback" in failed.stderr and "in reset" in failed.stderr
    assert "KeyError: 'no java'" in failed.stderr and "RuntimeError: no world today" in failed.stderr
    assert "env_policy_check.py" not in failed.stderr and failed.stderr.count("\n") < 30
    assert not (tmp_path / "runs").exists()
    shown = reproduced(cli, failed)
    assert shown.returncode == 2 and "RuntimeError: no world today" in shown.stderr


@pytest.mark.fleet
def test_environment_that_fails_at_its_first_start_in_an_actor_ends_the_run_with_its_traceback(
    cli: Cli, tmp_path: Path
) -> None:
    failed = cli("train", "mine.yaml", "env.kwargs={once: true}", "--run-dir", "run")
    assert failed.returncode == 1
    assert json.loads(failed.stdout)["stopped_by"] == "failure"
    assert 'raise RuntimeError("there can be only one")' in failed.stderr
    assert "starts again" not in failed.stderr
    assert (tmp_path / "run" / "logs" / "actor-0.log").read_text().count(" ERROR ") == 1
    shown = reproduced(cli, failed)
    assert shown.returncode == 1 and "RuntimeError: there can be only one" in shown.stdout


def test_env_command_names_an_argument_that_is_neither_a_configuration_nor_a_run(cli: Cli) -> None:
    assert "'nowhere' is no preset" in cli("env", "nowhere").stderr
    assert "give a CONFIG" in cli("env").stderr
