"""Publishes a trained iteration: weights, checkpoints, acknowledgements and metrics.

    publish ─▶ ack ─▶ episodes ─▶ checkpoint ─▶ metrics
       │        │        │            │            │
  parameters  replay   replay   writer's thread   loggers

With canary slots, an iteration is judged first. One whose policy has collapsed, or whose lease was acted by such a one,
waits; so versions that canary slots act by, and were not promoted by then, are not.

Publish comes before ack, so that a crash between them repeats work and loses none; ack before checkpoint, so that no
checkpoint holds steps that replay would hand out again. Replay learns of a version with the first call after parameters
has acked it, so that it never holds one that nobody published.
"""

import json
import time
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from minefleet.config.rollout import CANARY_VERSIONS
from minefleet.core.atomic_files import write_whole
from minefleet.core.errors import ContractError, FencedError, GaveUpError, NotFoundError
from minefleet.launch.torchrun_variables import launch_age_s
from minefleet.monitoring.journal import read_whole_journal
from minefleet.monitoring.rollback_requests import undone_versions
from minefleet.policies.weight_arrays import Weights
from minefleet.rpc.parameters_client import ParametersClient
from minefleet.rpc.replay_types import NO_POSITION, Position
from minefleet.rpc.weights.version_info import VersionInfo
from minefleet.runs.checkpoint_files import CheckpointState
from minefleet.runs.run_yaml import RUN_FILE, Run
from minefleet_learner.checkpoints.run_snapshot_uploader import SnapshotUploader
from minefleet_learner.checkpoints.writer import CheckpointWriter
from minefleet_learner.collapse_pause import Pause
from minefleet_learner.data.prefetcher import Prefetcher
from minefleet_learner.data.sharded_replay import Shards
from minefleet_learner.live_config import IterationConfig
from minefleet_learner.metrics.episode_statistics import EpisodeStatistics
from minefleet_learner.metrics.loggers import MetricsLogger, finite
from minefleet_learner.metrics.loop_timer import LoopTimer
from minefleet_learner.metrics.metrics_row import IterationStats, Speedometer, make_row
from minefleet_learner.metrics.prometheus import LearnerMetrics
from minefleet_learner.metrics.stop_rule import stop_reason, with_best
from minefleet_learner.metrics.task_step_shares import StepShares
from minefleet_learner.training.optimizer_state_arrays import TrainState, checkpoint_of
from minefleet_learner.training.optimizer_step import NonFiniteError
from minefleet_runtime.role_status import StatusTracker

RESULT_FILE = "result.json"
STATUS_KEYS = (
    "iteration",
    "policy_version",
    "env_steps",
    "trained_steps",
    "episodes",
    "episode_failures",
    "sps",
    "learner_wait_ratio",
    "snapshot_lag",
)
"""Numbers of a row that the status shows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IterationResult:
    """One iteration that is not published yet."""

    iteration: int
    """Iterations done with it."""
    version: int
    """Version to publish its weights as; otherwise the newest one."""
    is_published: bool
    weights: Future[Weights]
    """The copy of them, which may be under way."""
    train_state: TrainState | None
    """Directory of a checkpoint that is due."""
    stats: IterationStats
    following: IterationConfig
    """Of the iteration after it, which begins with its weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnerServices:
    """The destinations of iterations."""

    run: Run
    prefetcher: Prefetcher
    replay: Shards
    parameters: ParametersClient
    writer: CheckpointWriter
    snapshots: SnapshotUploader
    metrics: LearnerMetrics
    status: StatusTracker
    loop_time: LoopTimer


class Publisher:
    """Finishes iterations, one thread at a time: `take_up`, `publish_first`, `finish`, `write_result`."""

    def __init__(self, services: LearnerServices, pause: Pause) -> None:
        self._services = services
        self._pause = pause
        self._has_canaries = bool(services.run.config.rollout_config.canary_share)
        self._speed = Speedometer()
        self._restarted_s = launch_age_s()
        self._shares = StepShares(services.run.config)
        self._state = CheckpointState(run_id="")
        self._config, self._settings = services.run.config, ""
        self._episodes = EpisodeStatistics()
        self._position = NO_POSITION
        self._loggers = MetricsLogger(services.run)
        self.run_text = ""
        """Text of the `run.yaml` that is trained by; the file may be rewritten meanwhile, for the next start."""
        self._earlier_s = 0.0
        self._undone: list[range] = []

    def take_up(self, state: CheckpointState, following: IterationConfig) -> None:
        """Goes on from a checkpoint, with the configuration of the iteration after it."""
        self._state, self._config, self._settings = state, following.config, following.text
        self.run_text = (self._services.run.directory / RUN_FILE).read_text()
        config = self._services.run.config.rollout_config.episode_statistics_config
        self._episodes = EpisodeStatistics(config, state.episodes)
        self._earlier_s = state.wall_s
        self._undone = undone_versions(read_whole_journal(self._services.run.directory))
        if self._pause.comes_after(state):
            self._episodes.collapse.forget()  # Or it would pause again for what it has paused for.
        self._loggers.open(state)

    def publish_first(self, weights: Weights) -> CheckpointState:
        """Fences every earlier learner of the run, and publishes above all that it published.

        Raises:
            GaveUpError: If parameters holds another run or another architecture; another start would not change that.
        """
        try:
            return self._publish_first(weights)
        except ContractError as error:
            raise GaveUpError(f"parameters refuses this learner: {error}") from error

    def finish(self, trained: IterationResult) -> CheckpointState:
        """Makes an iteration known and says where training stands; `stopped_by` names what ends the run, if any."""
        if self._has_canaries:
            self._judge_policy(trained.stats)
        self._config, self._settings = trained.following.config, trained.following.text
        if trained.is_published:
            self._publish(trained.weights.result(), trained.iteration, trained.version)
            self._services.loop_time.published()
        self._ack(trained)
        self._read_episodes()
        self._judge()
        self._save(trained)
        self._log(trained.stats)
        return self._state

    def conclude(self, reason: str) -> CheckpointState:
        """Records the end of training, by the run's own condition or else `reason`."""
        self._judge()
        self._state = replace(self._state, stopped_by=self._state.stopped_by or reason, wall_s=self._wall_s)
        self._rank()
        return self._state

    def write_result(self, place: Path) -> None:
        """Writes `result.json`, which names the last checkpoint."""
        result = {
            "stopped_by": self._state.stopped_by,
            "episode_return_mean": self._episodes.return_mean,
            "env_steps": self._state.env_steps,
            "trained_steps": self._state.trained_steps,
            "skipped_steps": self._state.skipped_steps,
            "iteration": self._state.iteration,
            "checkpoint": str(place),
        }
        write_whole(self._services.run.directory / RESULT_FILE, json.dumps(finite(result)) + "\n")

    def close(self) -> None:
        """Closes the loggers, and makes the last snapshot; all get `services.drain_s`. The second time does nothing."""
        until = time.monotonic() + self._services.run.config.services.drain_s
        self._services.snapshots.end()
        self._loggers.close()
        self._services.snapshots.join(until - time.monotonic())

    def _publish_first(self, weights: Weights) -> CheckpointState:
        resumed = self._state
        epoch = self._services.parameters.open_epoch(resumed.run_id, resumed.epoch, resumed.version)
        older, version = self._promoted_before(resumed), epoch.newest_version + 1
        self._position = Position(
            run_id=resumed.run_id, epoch=epoch.epoch, resumed_version=resumed.version, first_version=version
        )
        self._state = replace(resumed, epoch=epoch.epoch)
        if any(each.start == resumed.version + 1 for each in self._undone):
            self._undone.append(range(resumed.version + 1, version))  # One may have been published after the answer.
        if older is not None:
            self._publish(older[1], older[0].iteration, version)
            version += 1
        self._publish(weights, resumed.iteration, version)
        # What abandoned versions acted takes up room: an actor that waits for its turn would wait for ever.
        self._services.replay.send_position()
        self._judge()
        return self._state

    def _promoted_before(self, resumed: CheckpointState) -> tuple[VersionInfo, Weights] | None:
        """The promoted version, where that is older than the checkpoint, which is still a canary then.

        Its weights are published again, so that they are as fresh as before.
        """
        if not self._has_canaries or not resumed.version:
            return None
        try:
            promoted = self._services.parameters.fetch()
        except NotFoundError:
            return None
        return promoted if promoted[0].iteration < resumed.iteration else None

    def _judge_policy(self, stats: IterationStats) -> None:
        """Waits where the policy has collapsed, until somebody says how to go on."""
        if sign := self._episodes.collapse.judge(stats.report, stats.parity):
            self._pause.begin(sign, self._state)
            self._pause.wait()
            self._episodes.collapse.forget()

    def _publish(self, weights: Weights, iteration: int, version: int) -> None:
        """Publishes weights as a version; replay learns of it with the next call."""
        if not all(np.isfinite(array).all() for array in weights.values()):
            raise NonFiniteError(f"the weights after iteration {iteration} are not finite; they are not published")
        promoted = max(self._position.first_version, version - CANARY_VERSIONS * self._has_canaries)
        published = self._services.parameters.publish(
            weights, iteration=iteration, promoted=promoted if promoted < version else 0, settings=self._settings
        )
        if published != version:
            raise FencedError(f"iteration {iteration} was to be version {version}; parameters made it {published}")
        self._state = replace(self._state, version=version)
        self._position = replace(self._position, version=version)
        self._services.replay.set_position(self._position)

    def _ack(self, trained: IterationResult) -> None:
        """Spends the lease; from here on the iteration is done."""
        state, stats = self._state, trained.stats
        env_steps = self._services.prefetcher.ack(stats.lease)
        self._state = replace(
            state,
            iteration=trained.iteration,
            env_steps=max(state.env_steps, env_steps),
            trained_steps=state.trained_steps + (stats.lease.new_steps if stats.report.is_trained else 0),
            skipped_steps=state.skipped_steps + stats.report.skipped_steps,
            wall_s=self._wall_s,
        )

    def _read_episodes(self) -> None:
        """Reads the episodes that finished since the last time, but for those of versions that are undone."""
        answers = self._services.replay.read_episodes(self._state.episode_cursors)
        records = [
            record for record in answers.records if not any(record.policy_version in each for each in self._undone)
        ]
        for record in records:
            self._episodes.add(record)
        self._loggers.write_episodes(records, self._state)
        self._state = replace(self._state, episode_cursors=answers.cursors, episodes=self._episodes.to_dict())

    def _judge(self) -> None:
        """Finds out whether the run is over; then nobody waits for fragments any more."""
        if not self._state.stopped_by:
            launch_s = self._restarted_s + self._speed.launch_s
            reason = stop_reason(self._config, self._state, self._episodes, launch_s, self._shares.starved_for)
            self._state = replace(self._state, stopped_by=reason)
        if self._state.stopped_by:
            self._services.prefetcher.end()

    def _save(self, trained: IterationResult) -> None:
        """Writes a checkpoint where one is due; the last one is left to the loop."""
        if trained.train_state is None or self._state.stopped_by:
            return
        self._rank()
        checkpoint = checkpoint_of(self._state, trained.weights.result(), trained.train_state, self.run_text)
        self._services.writer.submit(checkpoint)

    def _rank(self) -> None:
        """Finds out whether the checkpoint that is about to be written is the best so far."""
        if self._config.train_config.keep_best:
            self._state = with_best(self._state, self._episodes)

    def _log(self, stats: IterationStats) -> None:
        row = make_row(
            state=self._state,
            episodes=self._episodes,
            stats=stats,
            sps=self._speed.pass_by(self._state.env_steps),
            loop_share=self._services.loop_time.shares(),
            shares=self._shares.summary(self._services.replay.latest),
        ) | self._services.snapshots.ask(self._state.iteration)
        row |= self._episodes.collapse.summary() if self._has_canaries else {}
        self._loggers.write(row)
        self._services.metrics.observe(row, skipped_steps=stats.report.skipped_steps)
        self._services.status.set_stats({name: row[name] for name in STATUS_KEYS if row.get(name) is not None})

    @property
    def _wall_s(self) -> float:
        return self._earlier_s + self._speed.launch_s
