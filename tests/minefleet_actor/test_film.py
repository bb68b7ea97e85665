"""Frames through the pool, and an evaluation on film."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.films import pictures

from minefleet.config import EnvConfig, FleetConfig, TrainConfig, WorkerConfig
from minefleet.launch.env_policy_check import check_env_and_policy
from minefleet.runs.run_yaml import Run
from minefleet.runs.trained_policy_files import TrainedPolicy
from minefleet_actor.evaluation.evaluate import evaluate, parse
from minefleet_actor.pool import EnvPool, InlinePool, Kind, Pool


def make_run(directory: Path, env: str, interval: int = 0) -> Run:
    config = FleetConfig(env=EnvConfig(id=env), train_config=TrainConfig(record_video_interval=interval))
    found = check_env_and_policy(config)
    return Run(
        directory=directory,
        config=config,
        schema=found.schema,
        architecture=found.architecture,
        frame_shape=found.frame_shape,
    )


def reset(pool: Pool) -> None:
    """Resets both slots."""
    pool.reset(np.arange(2))
    left = 2
    while left:
        ready = pool.wait(30)
        assert (ready.kind == Kind.RESET).all()
        left -= len(ready.slots)


@pytest.mark.parametrize("make", [EnvPool, InlinePool])
def test_a_slot_renders_from_the_reset_on_while_it_is_filmed_and_no_other_does(
    tmp_path: Path, make: type[EnvPool] | type[InlinePool]
) -> None:
    run = make_run(tmp_path, "CartPole-v1", interval=1)
    worker = WorkerConfig(num_envs=2, envs_per_process=2)
    pool = make(run.config.env, run.schema, worker, seed=0, actor_index=0, frame_shape=run.frame_shape)
    pool.start()
    try:
        assert pool.frames.shape == (2, 400, 600, 3)
        pool.film(1, True)
        reset(pool)
        assert [int(frame.max()) for frame in pool.frames] == [0, 255]
        pool.film(1, False)
        assert pool.frames[1].any() and not pool.is_filmed(1)
        pool.film(1, True)
        assert not pool.frames[1].any(), "an old frame is shown as a new one"
        pool.film(1, False)
        reset(pool)
        assert int(pool.frames.max()) == 0
    finally:
        pool.close()


def evaluated(directory: Path, env: str, *arguments: str) -> dict[str, Any]:
    """The result of an evaluation of random play."""
    parsed = parse([str(directory), "--random", "--seed", "3", *arguments])
    return evaluate(make_run(directory, env), TrainedPolicy(version=7, env_steps=None, run_file=""), parsed)


def test_evaluation_films_an_episode_of_a_run_made_without_videos(tmp_path: Path) -> None:
    summary = evaluated(tmp_path, "CartPole-v1", "--episodes", "1", "--video", str(tmp_path))
    assert summary["video"] == str(tmp_path / "random.mp4")
    (number, first), *rest = pictures(tmp_path / "random.mp4")
    # The picture after the last step, and once more a second later.
    assert (number, len(rest)) == (0, summary["length_mean"] + 1)
    assert first.shape[1] == 600
    assert any(not np.array_equal(first[:400], picture[:400]) for _, picture in rest)
    assert [entry.name for entry in tmp_path.iterdir()] == ["random.mp4"]


def test_an_evaluation_reports_what_environments_say_of_their_episodes(tmp_path: Path) -> None:
    summary = evaluated(tmp_path, "minefleet/Recall-v0", "--episodes", "3")
    assert summary["metrics"]["success"] == summary["return_mean"]
