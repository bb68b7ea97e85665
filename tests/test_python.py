"""Runs that programs train, open and load, as processes."""

import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import minefleet
from minefleet.core.errors import ConfigError
from minefleet.runs.trained_policy_files import read_trained
from minefleet_actor.evaluation.player import make_player

PAGE = Path(__file__).parent.parent / "docs/python.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
STEPS = 500
RECALL = """
import minefleet
from omegaconf import OmegaConf
config = {"preset": "recall", "stop": {"env_steps": 4000}, "seed": "${stop.env_steps}"}
print(minefleet.train(OmegaConf.create(config), run_dir="run", progress=False))
"""
ENDLESS = """
import minefleet
minefleet.train("cartpole", "stop.env_steps=0", run_dir="run")
"""
FAILING = """
import minefleet

def make_env():
    raise OSError("no such world")

if __name__ == "__main__":
    minefleet.train({"env": {"generator": make_env}}, run_dir="run")
"""


def start(folder: Path, program: str) -> "subprocess.Popen[str]":
    (folder / "program.py").write_text(program)
    command = [sys.executable, "program.py"]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(folder: Path, program: str) -> str:
    """Its output."""
    process = start(folder, program)
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    return out


def assert_acts_as_eval_does(directory: Path) -> None:
    """Plays some episodes by the agent, and shows the evaluator's policy the same observations."""
    agent, (trained, run, weights) = minefleet.load(directory), read_trained(directory)
    evaluator = make_player(run, episodes=1, seed=0).inference
    evaluator.swap(weights, trained.version)
    env, slot, episodes = agent.make_env(), np.array([0]), 0
    obs, over = env.reset(seed=1)[0], False
    for _ in range(STEPS):
        action = agent.act(obs)
        assert action == evaluator.decide(slot, obs[np.newaxis]).action[0]
        obs, _, terminated, truncated, _ = env.step(action)
        over = terminated or truncated
        if over:
            agent.reset()
            evaluator.reset(slot)
            obs, episodes = env.reset()[0], episodes + 1
    assert episodes > 0


@pytest.mark.fleet
def test_the_first_example_of_the_page_trains_shows_its_progress_and_acts(tmp_path: Path) -> None:
    out = finish(tmp_path, EXAMPLES[0] + "\nprint('acted for', step + 1)\n")
    (directory,) = (tmp_path / "runs").iterdir()
    run = minefleet.open(directory)
    assert out.startswith(f"training in {directory}\n") and "env steps" in out and f"acted for {STEPS}\n" in out
    assert run.metrics()[-1]["env_steps"] >= 5000 and (directory / "curve.png").exists()
    assert (run.config.seed, run.config.env.id) == (3, "CartPole-v1")
    assert [minefleet.load(path).version for path in run.checkpoints()][-1] == minefleet.load(directory).version
    assert_acts_as_eval_does(directory)


@pytest.mark.fleet
def test_a_policy_with_memory_of_a_configuration_of_omegaconf_acts_as_eval_does(tmp_path: Path) -> None:
    assert finish(tmp_path, RECALL) == f"<run in {tmp_path / 'run'}>\n"
    assert minefleet.open(tmp_path / "run").config.seed == 4000
    assert_acts_as_eval_does(tmp_path / "run")


@pytest.mark.fleet
def test_a_function_of_a_program_makes_the_environment_of_a_run(tmp_path: Path) -> None:
    finish(tmp_path, EXAMPLES[1])
    (directory,) = (tmp_path / "runs").iterdir()
    assert minefleet.load(directory).make_env().spec.max_episode_steps == 200


@pytest.mark.fleet
def test_an_interrupted_run_writes_a_checkpoint_and_interrupts_its_program(tmp_path: Path) -> None:
    process = start(tmp_path, ENDLESS)
    assert process.stdout is not None
    next(line for line in process.stdout if "env steps" in line)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert errors.endswith("KeyboardInterrupt\n") and process.returncode == -signal.SIGINT
    assert minefleet.load(tmp_path / "run").version > 0


def test_an_environment_that_fails_is_an_error_with_its_own_words_and_no_command(tmp_path: Path) -> None:
    process = start(tmp_path, FAILING)
    _, errors = process.communicate()
    assert process.returncode == 1 and "EnvFailedError" in errors and "no such world" in errors
    assert "reproduce it with" not in errors and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"env": {"id": "CartPole-v1", "kwargs": {"f": print}}}, "config is no configuration"),
        ({"envv": {"id": "CartPole-v1"}}, r"unknown key envv \(config\)"),
        ("cartpol", "'cartpol' is no preset.*; the nearest is cartpole"),
    ],
)
def test_minefleet_train_refuses_a_wrong_configuration(tmp_path: Path, config: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        minefleet.train(config, run_dir=tmp_path / "run")  # type: ignore[arg-type]  # So do users.
    assert not (tmp_path / "run").exists()


def test_minefleet_train_outside_the_main_thread_is_refused(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as thread, pytest.raises(ConfigError, match="from the main thread"):
        thread.submit(minefleet.train, "cartpole", run_dir=tmp_path / "run").result()


def test_minefleet_package_exports_what_it_names_and_nothing_else() -> None:
    assert all(callable(getattr(minefleet, name)) for name in minefleet.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        _ = minefleet.trian  # type: ignore[attr-defined]
