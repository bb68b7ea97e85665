"""Frames through the pool, and an evaluation on film."""

from pathlib import Path

import numpy as np
import pytest

from minefleet.config import EnvConfig, FleetConfig, TrainConfig, WorkerConfig
from minefleet.launch.preflight import preflight
from minefleet.run import Run
from minefleet.trained import Trained
from minefleet_actor.evaluate import evaluate, parse, record
from minefleet_actor.film import film
from minefleet_actor.play import make_player
from minefleet_actor.pool import EnvPool, InlinePool, Kind, Pool
from minefleet_actor.video.mp4 import pictures


def make_run(directory: Path, env: str, interval: int = 0) -> Run:
    config = FleetConfig(env=EnvConfig(id=env), train_config=TrainConfig(record_video_interval=interval))
    found = preflight(config)
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
        pool.frames[:] = 0
        pool.film(1, False)
        reset(pool)
        assert int(pool.frames.max()) == 0
    finally:
        pool.close()


def test_an_evaluation_is_filmed_also_where_the_run_was_made_without_videos(tmp_path: Path) -> None:
    run = make_run(tmp_path, "CartPole-v1")
    inference = make_player(run, episodes=1, seed=3).inference
    path = film(run, inference, tmp_path / "films" / "random.mp4", seed=3)
    shown = list(pictures(path))
    assert shown[0][1].shape[1] == 600
    assert len(shown) > 8
    assert any(not np.array_equal(shown[0][1][:400], picture[:400]) for _, picture in shown)
    assert [entry.name for entry in path.parent.iterdir()] == ["random.mp4"]


def test_an_evaluation_reports_what_environments_say_of_their_episodes_and_names_its_video(tmp_path: Path) -> None:
    trained = Trained(version=7, env_steps=None, run_file="")
    arguments = parse([str(tmp_path), "--random", "--episodes", "3", "--seed", "1", "--video", str(tmp_path)])
    summary = evaluate(make_run(tmp_path, "minefleet/Recall-v0"), trained, arguments)
    assert summary["metrics"]["success"] == summary["return_mean"]
    assert record(make_run(tmp_path, "CartPole-v1"), trained, arguments).name == "random.mp4"
