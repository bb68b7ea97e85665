"""Makes an actor's camera from a run, where there is something to film."""

import logging

from minefleet.rpc.parameters_client import ParametersClient
from minefleet.runs.run_yaml import Run
from minefleet_actor.metrics.prometheus import ActorMetrics
from minefleet_actor.pool import Pool
from minefleet_actor.replay_io.stream_router import StreamRouter
from minefleet_actor.rollout.running_episodes import RunningEpisodes
from minefleet_actor.video.frame_source import can_film, make_lens
from minefleet_actor.video.video_recorder import Camera

logger = logging.getLogger(__name__)


def is_to_film(run: Run) -> bool:
    """Whether an actor shall film if it is named, and has something to show."""
    if not run.config.train_config.record_video_interval:
        return False
    is_visible = can_film(run)
    if not is_visible:
        logger.warning("no videos: the environment shows no pixels, and the run was made without rendering")
    return is_visible


def make_camera(
    run: Run,
    pool: Pool,
    episodes: RunningEpisodes,
    router: StreamRouter,
    parameters: ParametersClient,
    metrics: ActorMetrics,
) -> Camera:
    """A camera that films while parameters names this actor."""
    worker = run.config.rollout_config.worker_config
    return Camera(
        lens=make_lens(run, pool),
        episodes=episodes,
        film=pool.film if run.frame_shape is not None else lambda slot, on: None,
        is_named=lambda: parameters.films,
        report=router.send_episode,
        directory=run.directory / worker.video_output_dir,
        fps=worker.video_fps,
        interval=run.config.train_config.record_video_interval,
        metrics=metrics,
    )
