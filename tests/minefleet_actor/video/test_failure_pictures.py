"""Pictures from before failures."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from minefleet.config import EnvConfig, FleetConfig, TrainConfig, WorkerConfig
from minefleet.core.errors import NotFoundError
from minefleet.launch.env_policy_check import check_env_and_policy
from minefleet.runs.run import Run
from minefleet_actor.pool import InlinePool
from minefleet_actor.video import failure_pictures
from minefleet_actor.video.failure_pictures import FailurePictures

SLOTS = 3


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


def started(run: Run) -> InlinePool:
    worker = WorkerConfig(num_envs=SLOTS, envs_per_process=SLOTS)
    pool = InlinePool(run.config.env, run.schema, worker, seed=0, actor_index=0, frame_shape=run.frame_shape)
    pool.start()
    return pool


@pytest.fixture(scope="module")
def rendering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, InlinePool]]:
    run = make_run(tmp_path_factory.mktemp("run"), "CartPole-v1", interval=1)
    pool = started(run)
    yield run, pool
    pool.close()


def test_picture_of_a_failed_slot_is_the_last_one_that_it_rendered(rendering: tuple[Run, InlinePool]) -> None:
    run, pool = rendering
    pictures = FailurePictures(run, pool)
    pool.film(1, True)
    pool.frames[1] = np.arange(600)[:, None] % 251
    expected = pool.frames[1].copy()
    pictures.keep(1)
    pool.frames[1] = 9
    assert 1 in pictures and np.array_equal(pictures.picture(1), expected)
    pictures.keep(1)
    assert np.all(pictures.picture(1) == 9)


def test_a_slot_that_rendered_nothing_at_its_last_failure_has_no_picture(rendering: tuple[Run, InlinePool]) -> None:
    run, pool = rendering
    pictures = FailurePictures(run, pool)
    pool.film(0, True)
    pool.frames[:] = 7
    pictures.keep(0)
    assert 0 in pictures
    pool.film(0, False)
    pictures.keep(0)  # What is there is old.
    pool.film(2, True)
    pictures.keep(2)  # It renders from its next command on.
    for slot in (0, 2):
        assert slot not in pictures
        with pytest.raises(NotFoundError, match=f"slot {slot} has left no picture"):
            pictures.picture(slot)


def test_failure_pictures_drop_the_oldest_beyond_their_bytes(
    rendering: tuple[Run, InlinePool], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, pool = rendering
    pictures = FailurePictures(run, pool)
    noise = np.random.default_rng(0).integers(1, 256, pool.frames.shape, np.uint8)
    monkeypatch.setattr(failure_pictures, "MAX_BYTES", 2 * noise[0].nbytes + 2**16)
    for slot in (0, 1, 0, 2):
        pool.film(slot, True)
        pool.frames[slot] = noise[slot]
        pictures.keep(slot)
    assert [slot in pictures for slot in range(SLOTS)] == [True, False, True]
    assert np.array_equal(pictures.picture(0), noise[0])


def test_an_environment_without_pixels_leaves_no_picture(tmp_path: Path) -> None:
    run = make_run(tmp_path, "CartPole-v1")
    pool = started(run)
    pictures = FailurePictures(run, pool)
    pictures.keep(0)
    pool.close()
    assert 0 not in pictures
