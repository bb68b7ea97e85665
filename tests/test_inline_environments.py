"""Whole fleets whose environments play in their actor's own process."""

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import gymnasium
import numpy as np
import psutil
import pytest
from tests.conftest import Fleet, assert_counters_never_go_back

from minefleet.config import EnvConfig, WorkerConfig
from minefleet.config.load import from_data
from minefleet.core.errors import ConfigError
from minefleet.envs import schema_of
from minefleet.runs.episode_table import read_episodes
from minefleet_actor.pool import InlinePool

INLINE = "rollout_config.worker_config.envs_per_process=0"
ITERATION_STEPS, FRAGMENT_STEPS, SLOTS = 256, 32, 8
DEADLY = """
import os
from pathlib import Path

import gymnasium


class Deadly(gymnasium.Wrapper):
    def __init__(self, render_mode=None):
        super().__init__(gymnasium.make("CartPole-v1", render_mode=render_mode))
        self.steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps > 300 and not Path("died").exists():
            Path("died").touch()
            os.abort()
        return self.env.step(action)
"""


REGISTERS = """
import gymnasium

gymnasium.register("PoleHere-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv")
"""
RAISES = """
import gymnasium


class Raises(gymnasium.Wrapper):
    def __init__(self, render_mode=None):
        super().__init__(gymnasium.make("CartPole-v1", render_mode=render_mode))

    def step(self, action):
        raise ValueError("by itself")
"""


@pytest.mark.fleet
def test_fleet_of_inline_environments_trains_and_films_without_their_processes(train: Callable[..., Fleet]) -> None:
    fleet = train("cartpole", INLINE, "stop.env_steps=8000", "train_config.record_video_interval=4", "seed=5")
    fleet.wait_for_env_steps(1000)
    assert psutil.Process(fleet.pid("actor-0")).children(recursive=True) == []
    assert fleet.finish()["stopped_by"] == "env_steps"
    last = fleet.rows()[-1]
    assert last["trained_steps"] > 0.9 * last["env_steps"]
    assert sorted(path.suffix for path in (fleet.directory / "videos").rglob("*.mp4"))


@pytest.mark.fleet
def test_an_inline_environment_that_crashes_ends_its_actor_and_the_run_goes_on(
    train: Callable[..., Fleet], tmp_path: Path
) -> None:
    (tmp_path / "deadly.py").write_text(DEADLY)
    fleet = train("cartpole", INLINE, "env.id=", "env.generator=deadly.py:Deadly", "stop.env_steps=8000", "seed=5")
    assert fleet.finish()["stopped_by"] == "env_steps"
    assert (tmp_path / "died").exists()
    assert "Fatal Python error: Aborted" in (fleet.directory / "logs" / "actor-0.log").read_text()
    rows = fleet.rows()
    assert_counters_never_go_back(rows)
    lost = 2 * SLOTS * FRAGMENT_STEPS  # Open fragments, and those that were queued.
    assert rows[-1]["env_steps"] - rows[-1]["trained_steps"] <= lost + 2 * ITERATION_STEPS
    streams = {row["stream"] for row in read_episodes(fleet.directory / "episodes.csv")}
    assert len(streams) > SLOTS, "the second actor has streams of its own"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hosted", True),
        ("restart_interval", 60.0),
        ("max_rss_bytes", 2**30),
        ("max_resets_at_once", 1),
        ("start_jitter_s", 1.0),
    ],
)
def test_keys_that_need_processes_of_environments_are_refused_without_them(key: str, value: object) -> None:
    WorkerConfig(envs_per_process=1, **{key: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"{key} needs processes of environments"):
        WorkerConfig(envs_per_process=0, **{key: value})  # type: ignore[arg-type]


def test_another_interpreter_is_refused_without_processes_of_environments() -> None:
    data = {"env": {"python": sys.executable}, "rollout_config": {"worker_config": {"envs_per_process": 0}}}
    with pytest.raises(ConfigError, match=r"env\.python needs processes of environments"):
        from_data(data, "the test")


def test_inline_environment_is_found_in_the_current_folder_like_those_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "poles_here.py").write_text(REGISTERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with closing(gymnasium.make("CartPole-v1")) as env:
        schema = schema_of(env)
    config = EnvConfig(id="poles_here:PoleHere-v0")
    with closing(InlinePool(config, schema, WorkerConfig(num_envs=2), seed=0, actor_index=0)) as pool:
        pool.start()


def test_failure_of_an_inline_environment_is_logged_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "raises_here.py").write_text(RAISES)
    monkeypatch.chdir(tmp_path)
    with closing(gymnasium.make("CartPole-v1")) as env:
        schema = schema_of(env)
    config = EnvConfig(generator="raises_here.py:Raises")
    with closing(InlinePool(config, schema, WorkerConfig(num_envs=1), seed=0, actor_index=0)) as pool:
        pool.start()
        pool.reset(np.array([0]))
        pool.wait(1.0)
        pool.step(np.array([0]), np.array([0]))
        assert pool.wait(1.0).failures.keys() == {0}
    (line,) = caplog.messages
    assert line.startswith("failure, exception: slot 0: ") and line.endswith("ValueError: by itself")
