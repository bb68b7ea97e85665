"""Lets an actor that plays work by the live settings that come with a version."""

from minefleet.runs.run_yaml import Run
from minefleet_actor.rollout.freshness_cuts import FreshnessCuts
from minefleet_actor.video.video_recorder import Camera


def follow_settings(run: Run, cuts: FreshnessCuts, camera: Camera | None, settings: str) -> bool:
    """Works by a version's settings from now on.

    Returns:
        Whether that can be: another `worker_config` than the one in `run` takes another actor.
    """
    config = run.with_settings(settings).config
    if config.rollout_config.worker_config != run.config.rollout_config.worker_config:
        return False
    cuts.balanced = config.rollout_config.replay_buffer_config.balance != "speed"
    if camera is not None:
        camera.interval = config.train_config.record_video_interval
    return True
