"""The learner's loop.

    replay ─▶ prefetcher ─▶ probe, update ─▶ backlog ─▶ copy ─▶ publish ─▶ ack ─▶ episodes ─▶ checkpoint ─▶ metrics
                    └─────── loop ──────┘               └ copier's ┘ └──────────── backlog's thread ──────────────┘

The loop waits for the prefetcher (enough fragments) and, before it changes the weights again, for the copy of the last
ones, which began meanwhile. It hands the iteration to the backlog and goes on with the next lease; it knows the version
that parameters will give it, one more than the last. The backlog's thread absorbs the latency of parameters, replay and
the disk. A stop ends every wait; iterations that are not acked by then are abandoned, their leases released, and the
last checkpoint stands.

The loop never waits for room in the backlog, because data runs out first. With P the newest published version, no
fragment is acted by a later one, so none may be used at a version above P + max_staleness. An iteration trained at
version v becomes v + 1. So the backlog holds versions P (published, not yet acked) to P + max_staleness + 1, which are
`max_staleness` + 2. Where that would take too much memory, `MAX_ITERATIONS_AHEAD` limits it. With `max_staleness` 0 the
loop is in step with parameters.

The loop owns policy, optimizer, random generators, and the count of iterations and versions. The backlog's thread owns
what it reads from the other roles: environment steps, episodes, cursors. Frozen records go between them.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from minefleet.core.errors import RolledBackError
from minefleet.monitoring.rollback_requests import settle_rollbacks
from minefleet.policies.weight_arrays import Weights
from minefleet.rpc.retrier import StoppedError
from minefleet.runs.checkpoint_files import CheckpointState, newest
from minefleet.v1 import status_service_pb2
from minefleet_learner.background_work_queue import Backlog, room_for
from minefleet_learner.checkpoints.host_copy import Copier
from minefleet_learner.checkpoints.restore import copy_train_state, restore, take_snapshot
from minefleet_learner.collapse_pause import Pause
from minefleet_learner.diagnostics.parity import Parity
from minefleet_learner.iteration_commit import RESULT_FILE, IterationResult, Publisher
from minefleet_learner.iteration_input import IterationInput
from minefleet_learner.learner_parts import LearnerParts
from minefleet_learner.live_config import LiveConfig
from minefleet_learner.metrics.metrics_row import IterationStats, Stopwatch
from minefleet_learner.metrics.stop_rule import Deadline
from minefleet_learner.rank_coordinator import begin, end, have_update, whole_lease
from minefleet_learner.training.schedules import Rates, progress, rates
from minefleet_learner.training.update_report import UpdateReport
from minefleet_learner.training.updater import Updater

logger = logging.getLogger(__name__)

SPARE_COPIES = 2
"""Copies of the weights beside those that the probe remembers: one that is written, one that is made."""


class Learner:
    """One learner on one run: `start`; `take`, train and `finish_iteration` until `is_over`; `finish`."""

    def __init__(self, parts: LearnerParts) -> None:
        self._parts, services = parts, parts.services
        self._live = LiveConfig(services.run)
        self._pause = Pause(services.run.directory, self._live.name, services.prefetcher, services.status)
        self._publisher = Publisher(services, self._pause)
        self._backlog: Backlog[IterationResult, CheckpointState] = Backlog(
            self._publisher.finish,
            room=room_for(services.run.config.rollout_config.replay_buffer_config.max_staleness),
            background=parts.background,
            give_up=parts.stopping.set,
            waiting=self._look,
        )
        self._watch = Stopwatch()
        self._time = services.loop_time
        self._moments = Copier()
        self._copying: Future[Weights] = Future()
        self._copy_thread = ThreadPoolExecutor(1, thread_name_prefix="copy") if parts.background else None
        self._started: CheckpointState | None = None
        self._iteration = self._version = 0
        """Of the policy here, which may be ahead of what is published."""
        self._is_published = True
        """Whether the policy here is, or will be, that version."""
        self._deadline = Deadline(parts.services.prefetcher.end)

    @property
    def updater(self) -> Updater:
        """The updater."""
        return self._parts.updater

    @property
    def is_over(self) -> bool:
        """Whether a stop condition is met. Raises what finishing an iteration raised."""
        config = self._live.at(self._iteration + 1).config
        return self._iteration >= config.train_config.num_iterations or bool(self._known().stopped_by)

    def start(self) -> None:
        """Takes up the run: checkpoint, epoch, first version.

        The checkpoint of a fresh run is written before any peer knows of it, so that its name survives a crash.
        """
        run, updater, services = self._parts.services.run, self._parts.updater, self._parts.services
        (run.directory / RESULT_FILE).unlink(missing_ok=True)
        settle_rollbacks(run)
        state = restore(run, updater)
        self._live.start(state)
        self._publisher.take_up(state, self._live.at(state.iteration + 1))
        if newest(run.checkpoints) is None:
            services.writer.write(take_snapshot(updater, state, self._publisher.run_text))
        begin(self._parts.ranks, updater)
        services.status.set_run(state.run_id)
        self._parts.copier.reserve(updater.policy.state_dict(), self._parts.probe.versions + SPARE_COPIES)
        self._copying = self._begin_copy()
        self._started = self._publisher.publish_first(self._copying.result())
        self._iteration, self._version = self._started.iteration, self._started.version
        services.status.set_state(status_service_pb2.STATE_RUNNING)
        self._pause.take_up()
        self._deadline.set(self._live.at(self._iteration + 1).config.stop.minutes)

    def take(self) -> IterationInput:
        """Waits for a lease; when this returns, the weights may be changed.

        Raises:
            StoppedError: If asked to stop while waiting.
            RolledBackError: If the run goes back to an older checkpoint.
        """
        self._pause.wait(self._look)
        settings = self._live.enter(self._known(), self._iteration + 1)
        if settings is not None:
            self._configure()
        self._time.waits()
        now, ahead = self._live.current.text, self._live.at(self._iteration + 2).text
        lease, batch = self._parts.services.prefetcher.take(self._version, now, ahead, self._wait)
        self._time.trains()
        self._watch.waited()
        if self._copying.done():  # As it is if the batch was acted by it: then it is published.
            self._wait_for_copy()
        parity = Parity() if batch is None else self._parts.probe.compare(batch)
        taken = IterationInput(
            lease=lease,
            batch=batch,
            rates=self._rates(),
            parity=parity,
            blocked_s=self._wait_for_copy(),
            config=self._live.current.config,
        )
        have_update(self._parts.ranks, taken.rates, settings, iteration=self._iteration, version=self._version)
        return taken

    def _wait(self) -> None:
        self._look()
        self._pause.wait(self._look)

    def _look(self) -> None:
        # The lease of the iteration after the next one may have its settings already.
        self._live.look(self._known(), self._iteration + 3)

    def _configure(self) -> None:
        config = self._live.current.config
        self.updater.configure(config.train_config)
        self._parts.services.writer.configure(config.train_config)
        self._deadline.set(config.stop.minutes)
        self._time.max_staleness = config.rollout_config.replay_buffer_config.max_staleness
        self._parts.probe.remember_enough(self._time.max_staleness)
        self._backlog.room = room_for(self._time.max_staleness)

    def finish_iteration(self, taken: IterationInput, report: UpdateReport, *, new_version: bool = True) -> None:
        """Finishes an iteration: copies the weights and leaves the rest to the backlog.

        Args:
            taken: What it was trained on.
            report: What the update did.
            new_version: Whether its weights are published; otherwise the newest version stays the newest.
        """
        self._iteration, self._version = self._iteration + 1, self._version + new_version
        began, writer = time.monotonic(), self._parts.services.writer
        with self._time.waiting_for_publish():
            self._backlog.make_room()
        if new_version:
            self._time.trained()
        self._copying, self._is_published = self._begin_copy(), new_version
        stats = IterationStats(
            lease=whole_lease(self._parts.ranks, taken.lease),
            report=report,
            parity=taken.parity,
            rates=taken.rates,
            publish_blocked_s=taken.blocked_s + time.monotonic() - began,
            changed_keys=self._live.changed_at(self._iteration),
            learner_wait_ratio=self._watch.lap(),
        )
        trained = IterationResult(
            iteration=self._iteration,
            version=self._version,
            is_published=new_version,
            weights=self._copying,
            train_state=copy_train_state(self.updater, self._moments) if writer.claim(self._iteration) else None,
            stats=stats,
            following=self._live.at(self._iteration + 1),
        )
        self._backlog.put(trained)

    def finish(self, reason: str) -> None:
        """Finishes all iterations, releases leases, and writes the last checkpoint and `result.json`.

        Args:
            reason: What ends the run where none of its own conditions does.
        """
        is_whole = self._flush()
        end(self._parts.ranks)
        self._end_threads()
        if is_whole:
            self._conclude(reason)
        else:
            logger.info("what was under way is abandoned; the last checkpoint stands")
        self.close()

    def send_ranks_home(self) -> None:
        """Ends the other ranks in good order."""
        end(self._parts.ranks)

    def _conclude(self, reason: str) -> None:
        services, state = self._parts.services, self._publisher.conclude(reason)
        place = services.writer.write(take_snapshot(self._parts.updater, state, self._publisher.run_text))
        self._publisher.write_result(place)
        logger.info("stopped by %s after %d iterations; the checkpoint is %s", state.stopped_by, state.iteration, place)

    def close(self) -> None:
        """Gives back leases, ends all threads and closes the loggers; the second time does nothing."""
        self._end_threads()
        self._publisher.close()

    def _end_threads(self) -> None:
        services = self._parts.services
        self._deadline.cancel()
        self._parts.stopping.set()
        services.parameters.close()
        self._backlog.close()
        if self._copy_thread is not None:
            self._copy_thread.shutdown()
        services.prefetcher.close()
        services.writer.close()
        services.replay.close()
        self._parts.ranks.close()

    def _flush(self) -> bool:
        """Waits for the backlog; returns whether all that was trained is finished."""
        try:
            self._backlog.flush()
        except StoppedError as error:
            logger.info("%s", error)
            return False
        return self._started is not None and self._known().iteration == self._iteration

    def _known(self) -> CheckpointState:
        """The position of training that the peers know."""
        assert self._started is not None
        return self._backlog.newest() or self._started

    def _rates(self) -> Rates:
        config = self._live.current.config
        return rates(config.train_config, self._iteration, progress(config, self._iteration, self._known().env_steps))

    def _begin_copy(self) -> Future[Weights]:
        tensors = self._parts.updater.policy.state_dict(keep_vars=True)
        if self._copy_thread is not None:
            return self._copy_thread.submit(self._parts.copier.copy, tensors)
        copied: Future[Weights] = Future()
        copied.set_result(self._parts.copier.copy(tensors))
        return copied

    def _wait_for_copy(self) -> float:
        """Waits until the weights may be changed; returns how long, seconds."""
        began = time.monotonic()
        with self._time.waiting_for_publish():
            weights = self._copying.result()
        if self._is_published:
            self._parts.probe.remember(self._version, weights)
        return time.monotonic() - began


def run(learner: Learner, stopping: threading.Event, train: Callable[[], None]) -> None:
    """Trains until the run is over or the process is asked to stop.

    Args:
        learner: Not started yet; closed afterwards.
        stopping: Asks it to stop.
        train: What is done once it is started, until it is over.
    """
    try:
        try:
            learner.start()
            train()
        except StoppedError as error:
            logger.info("%s", error)
        learner.finish("signal" if stopping.is_set() else "trainer")
    except RolledBackError:
        learner.send_ranks_home()
        raise
    finally:
        learner.close()
