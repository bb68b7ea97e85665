"""Lets an actor that plays work by the live settings that come with a version."""

from minefleet.runs.run import Run
from minefleet_actor.pool import EnvPool, Pool
from minefleet_actor.replay_io.stream_router import StreamRouter
from minefleet_actor.rollout.freshness_cuts import FreshnessCuts
from minefleet_actor.video.video_recorder import Camera


class ActorSettings:
    """The settings that an actor plays by; those of the first version are in its run's configuration."""

    def __init__(
        self, run: Run, settings: str, *, pool: Pool, router: StreamRouter, cuts: FreshnessCuts, camera: Camera | None
    ) -> None:
        self._run = run
        self._settings = settings
        self._pool = pool
        self._router = router
        self._cuts = cuts
        self._camera = camera

    def follow(self, settings: str) -> bool:
        """Works by a version's settings from now on; False where that takes another number of slots."""
        if settings == self._settings:
            return True
        config = self._run.with_settings(settings).config
        worker, buffer = config.rollout_config.worker_config, config.rollout_config.replay_buffer_config
        if worker.num_envs != self._pool.num_slots:
            return False
        if isinstance(self._pool, EnvPool):  # Hosts have a configuration of their own.
            self._pool.recycle(worker)
        self._router.follow(buffer.max_staleness)
        self._cuts.balanced = buffer.balance != "speed"
        if self._camera is not None:
            self._camera.interval = config.train_config.record_video_interval
        self._settings = settings
        return True
