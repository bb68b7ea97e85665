"""The learner's loop.

    replay ─▶ feed ─▶ probe, update ─▶ publish ─▶ ack ─▶ episodes ─▶ checkpoint ─▶ metrics
                                          │                              │            │
                                      parameters                  writer's thread   sinks

The loop waits for the feed (enough fragments), for parameters and replay (their answers), and, where a checkpoint is to
be kept, for the writer to be done with the last one. A stop ends every wait; an iteration that is not acked by then is
abandoned, its lease given back, and the last checkpoint stands.

Publish comes before ack, so that a crash between them repeats work and loses none; ack before checkpoint, so that no
checkpoint holds steps that replay would hand out again.
"""

import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from minefleet.checkpoint import Checkpoint, CheckpointState, newest
from minefleet.files import write_whole
from minefleet.parameters import ParametersClient
from minefleet.policies.weights import to_numpy
from minefleet.replay import NOWHERE, Position
from minefleet.rpc import StoppedError
from minefleet.run import RUN_FILE, Run
from minefleet.v1 import episode_pb2, status_service_pb2
from minefleet_learner.episodes import EpisodeStatistics
from minefleet_learner.feed import Feed, Leased
from minefleet_learner.metrics import LearnerMetrics
from minefleet_learner.parity import ParityProbe
from minefleet_learner.report import UpdateReport
from minefleet_learner.restore import restore, take_snapshot
from minefleet_learner.rows import Stopwatch, make_row
from minefleet_learner.saving import CheckpointWriter
from minefleet_learner.schedule import Rates, progress, rates, stop_reason
from minefleet_learner.shards import Shards
from minefleet_learner.sinks import Journal, finite
from minefleet_learner.update import NonFiniteError, Updater
from minefleet_runtime.context import StatusBoard

logger = logging.getLogger(__name__)

RESULT_FILE = "result.json"
FIGURES = ("iteration", "policy_version", "env_steps", "trained_steps", "episodes", "sps", "learner_wait_ratio")
"""Numbers of a row that the board shows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What a learner works with."""

    run: Run
    updater: Updater
    probe: ParityProbe
    feed: Feed
    replay: Shards
    parameters: ParametersClient
    writer: CheckpointWriter
    metrics: LearnerMetrics
    board: StatusBoard
    stopping: threading.Event
    """Set when the learner shall stop, by others or by itself."""


class Learner:
    """One learner on one run: `start`, `iterate` until `is_over`, `finish`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._watch = Stopwatch()
        self._state = CheckpointState(run_id="")
        self._episodes = EpisodeStatistics()
        self._position = NOWHERE
        self._journal = Journal(parts.run)
        self._run_text = ""
        self._earlier_s = 0.0
        self._stopped_by = ""
        self._is_whole = False  # Whether the state may be saved: false before the start and inside an iteration.

    @property
    def is_over(self) -> bool:
        """Whether a stop condition is met."""
        return bool(self._stopped_by)

    def start(self) -> None:
        """Takes up the run: checkpoint, epoch, first version.

        The checkpoint of a fresh run is written before any peer hears of it, so that its name survives a crash.
        """
        parts = self._parts
        (parts.run.directory / RESULT_FILE).unlink(missing_ok=True)
        self._run_text = (parts.run.directory / RUN_FILE).read_text()
        self._state = restore(parts.run, parts.updater)
        self._episodes = EpisodeStatistics.from_dict(self._state.episodes)
        self._earlier_s = self._state.wall_s
        self._journal.open(self._state.run_id, self._state.iteration)
        if newest(parts.run.checkpoints) is None:
            parts.writer.write(take_snapshot(parts.updater, self._state, self._run_text))
        parts.board.set_run(self._state.run_id)
        self._open_epoch()
        self._is_whole = True
        self._judge()
        parts.board.set(status_service_pb2.STATE_RUNNING)

    def iterate(self) -> None:
        """Trains on one lease."""
        leased = self._parts.feed.take(self._state.version)
        self._watch.waited()
        self._is_whole = False
        numbers = self._rates()
        parity = self._parts.probe.compare(leased.batch)
        report = self._parts.updater.update(leased.batch, numbers)
        self._publish(self._state.iteration + 1)
        self._ack(leased, report)
        self._is_whole = True
        self._read_episodes()
        self._judge()
        self._save()
        row = make_row(
            state=self._state,
            episodes=self._episodes,
            leased=leased,
            report=report,
            parity=parity,
            rates=numbers,
            times=self._watch.lap(self._state.env_steps),
        )
        self._log(row, report)

    def finish(self) -> None:
        """Gives back what was not trained on, and writes the last checkpoint and `result.json`."""
        self.close()
        if not self._is_whole:
            logger.info("what was under way is abandoned; the last checkpoint stands")
            return
        reason = self._stopped_by or "signal"
        self._state = replace(self._state, stopped_by=reason, wall_s=self._wall_s)
        place = self._parts.writer.write(self._snapshot())
        self._write_result(place)
        logger.info("stopped by %s after %d iterations; the checkpoint is %s", reason, self._state.iteration, place)

    def close(self) -> None:
        """Gives back leases and ends all threads; the second time does nothing."""
        self._parts.stopping.set()
        self._parts.feed.close()
        self._parts.writer.close()
        self._journal.close()
        self._parts.replay.close()
        self._parts.parameters.close()

    def _open_epoch(self) -> None:
        """Fences every earlier learner of the run, and publishes above all that it published."""
        resumed = self._state
        epoch = self._parts.parameters.open_epoch(resumed.run_id, resumed.epoch, resumed.version)
        self._position = Position(run_id=resumed.run_id, epoch=epoch.epoch, resumed_version=resumed.version)
        self._state = replace(resumed, epoch=epoch.epoch)
        self._publish(resumed.iteration)

    def _publish(self, iteration: int) -> None:
        """Publishes the weights; replay hears of the version with the next call."""
        parts, position = self._parts, self._position
        weights = to_numpy(parts.updater.policy)
        if not all(np.isfinite(array).all() for array in weights.values()):
            raise NonFiniteError(f"the weights after iteration {iteration} are not finite; they are not published")
        version = parts.parameters.publish(weights, iteration=iteration)
        parts.probe.remember(version, weights)
        self._state = replace(self._state, version=version)
        self._position = replace(position, version=version, first_version=position.first_version or version)
        parts.replay.stand(self._position)

    def _rates(self) -> Rates:
        config, state = self._parts.run.config, self._state
        return rates(config.train_config, state.iteration, progress(config, state.iteration, state.env_steps))

    def _judge(self) -> None:
        """Finds out whether the run is over."""
        self._stopped_by = stop_reason(self._parts.run.config, self._state, self._episodes, self._watch.launch_s)

    def _ack(self, leased: Leased, report: UpdateReport) -> None:
        """Spends the lease; from here on the iteration is done."""
        state, env_steps = self._state, self._parts.feed.ack(leased)
        self._state = replace(
            state,
            iteration=state.iteration + 1,
            env_steps=max(state.env_steps, env_steps),
            trained_steps=state.trained_steps + (leased.new_steps if report.is_trained else 0),
            skipped_steps=state.skipped_steps + report.skipped_steps,
            wall_s=self._wall_s,
        )

    def _read_episodes(self) -> None:
        """Takes in the episodes that finished since the last time."""
        records, cursors = self._parts.replay.read_episodes(self._state.episode_cursors)
        for record in records:
            self._episodes.add(record)
            if record.evaluation:
                self._journal.write_evaluation(evaluation_row(record, self._state))
        self._state = replace(self._state, episode_cursors=cursors, episodes=self._episodes.to_dict())

    def _save(self) -> None:
        """Writes a checkpoint where one is due; the last one is left to `finish`."""
        if not self.is_over and self._parts.writer.wants(self._state.iteration):
            self._parts.writer.submit(self._snapshot())

    def _snapshot(self) -> Checkpoint:
        return take_snapshot(self._parts.updater, self._state, self._run_text)

    def _log(self, row: Mapping[str, Any], report: UpdateReport) -> None:
        self._journal.write(row)
        self._parts.metrics.observe(row, skipped_steps=report.skipped_steps)
        self._parts.board.figures({name: row[name] for name in FIGURES if row[name] is not None})

    def _write_result(self, place: Path) -> None:
        result = {
            "stopped_by": self._state.stopped_by,
            "episode_return_mean": self._episodes.return_mean,
            "env_steps": self._state.env_steps,
            "trained_steps": self._state.trained_steps,
            "iteration": self._state.iteration,
            "checkpoint": str(place),
        }
        write_whole(self._parts.run.directory / RESULT_FILE, json.dumps(finite(result)) + "\n")

    @property
    def _wall_s(self) -> float:
        return self._earlier_s + self._watch.launch_s


def run(learner: Learner, stopping: threading.Event) -> None:
    """Trains until the run is over or the process is asked to stop."""
    try:
        learner.start()
        while not learner.is_over and not stopping.is_set():
            learner.iterate()
    except StoppedError as error:
        logger.info("%s", error)
    finally:
        learner.close()
    learner.finish()


def evaluation_row(record: episode_pb2.EpisodeRecord, state: CheckpointState) -> dict[str, Any]:
    """One line of `episodes.jsonl`."""
    return {
        "iteration": state.iteration,
        "env_steps": state.env_steps,
        "policy_version": record.policy_version,
        "episode_return": record.episode_return,
        "length": record.length,
        "task": record.task,
        "metrics": dict(record.metrics),
    }
