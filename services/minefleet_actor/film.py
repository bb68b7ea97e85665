"""Films one episode for people: `minefleet eval --video`."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from minefleet.config import WorkerConfig
from minefleet.errors import ConfigError
from minefleet.launch.preflight import describe_environment
from minefleet.run import Run
from minefleet.v1 import episode_pb2
from minefleet_actor.episodes import Episodes
from minefleet_actor.inference import Inference
from minefleet_actor.pool import EnvPool, Kind, Pool, Ready
from minefleet_actor.video.lens import Lens, make_lens
from minefleet_actor.video.picture import Caption
from minefleet_actor.video.reel import Reel

WAIT_S = 1.0
SLOT = np.zeros(1, np.intp)


def film(run: Run, inference: Inference, path: Path, *, seed: int) -> Path:
    """Plays one episode in slot 0 and writes it; one that fails is played again.

    Raises:
        ConfigError: If the environment cannot render.
    """
    run = renderable(run)
    worker = run.config.rollout_config.worker_config
    pool = EnvPool(
        run.config.env, run.schema, WorkerConfig(num_envs=1), seed=seed, actor_index=0, frame_shape=run.frame_shape
    )
    lens = make_lens(run, pool)
    if lens is None:
        raise ConfigError("the environment shows nothing that could be filmed")
    reel = Reel(path.parent, worker.video_fps)
    try:
        pool.start()
        return play(pool, inference, lens, reel, path.name, run.config.train_config.discount)
    finally:
        pool.close()
        reel.discard()


def renderable(run: Run) -> Run:
    """The run as if videos had been wanted, so that an environment that shows no pixels renders."""
    if run.frame_shape is not None:
        return run
    config = replace(run.config, train_config=replace(run.config.train_config, record_video_interval=1))
    shape = describe_environment(config)["frame_shape"]
    return replace(run, frame_shape=None if shape is None else tuple(shape))


def play(pool: Pool, inference: Inference, lens: Lens, reel: Reel, name: str, discount: float) -> Path:
    """Plays until an episode is whole."""
    episodes, reward = Episodes(1, discount, evaluation=True), 0.0
    pool.film(0, True)
    begin(pool, inference)
    while True:
        ready = pool.wait(WAIT_S)
        if not len(ready.slots):
            continue
        if ready.kind[0] == Kind.FAILED:
            reel.discard()
            episodes, reward = Episodes(1, discount, evaluation=True), 0.0
            begin(pool, inference)
            continue
        if ready.kind[0] == Kind.STEP:
            episodes.add(SLOT, ready.reward)
            reward = float(ready.reward[0])
        if ready.terminated[0] or ready.truncated[0]:
            return reel.finish(name, lens(0), reward, ended(episodes, inference.version, ready))
        act(pool, inference, lens, reel, episodes, reward)


def begin(pool: Pool, inference: Inference) -> None:
    """Asks for a new episode."""
    inference.reset(SLOT)
    pool.reset(SLOT)


def act(pool: Pool, inference: Inference, lens: Lens, reel: Reel, episodes: Episodes, reward: float) -> None:
    """Decides, shows what was decided on, and steps."""
    decision = inference.decide(SLOT, pool.obs)
    length, episode_return = episodes.so_far(0)
    caption = Caption(
        step=length,
        episode_return=episode_return,
        reward=reward,
        value=float(decision.value[0]),
        version=inference.version,
    )
    reel.add(lens(0), caption)
    pool.step(SLOT, decision.action)


def ended(episodes: Episodes, version: int, ready: Ready) -> episode_pb2.EpisodeRecord:
    """The record of the episode that has just ended."""
    ending = ready.endings.get(0)
    return episodes.end(0, "film", version=version, terminated=True, task=ending.task if ending else "")
