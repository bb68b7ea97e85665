"""The learner against real replay and parameters servers; fragments are made by a stand-in for the actor."""

import contextlib
import json
import math
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry
from tests.role_process import free_address

from minefleet.config import FleetConfig, PolicyConfig, ReplayBufferConfig, RolloutConfig, ServicesConfig, TrainConfig
from minefleet.config.root_config import EndpointConfig, StopConfig
from minefleet.core.errors import ConfigError, FencedError, GaveUpError, RolledBackError
from minefleet.core.fragment import Fragment
from minefleet.core.schema import Schema
from minefleet.launch.torchrun_variables import LAUNCHED
from minefleet.monitoring.journal import read_whole_journal, record_start
from minefleet.monitoring.learner_requests_in_journal import PAUSE, answers_in, ask
from minefleet.rpc.codec import encode
from minefleet.rpc.parameters_client import ParametersClient
from minefleet.rpc.replay_client import ReplayClient
from minefleet.rpc.replay_types import Position
from minefleet.rpc.weights.bfloat16 import as_fetched
from minefleet.runs.checkpoint_files import newest, read, read_state
from minefleet.runs.run_yaml import Run
from minefleet.v1 import fragment_pb2, status_service_pb2
from minefleet.v1.episode_pb2 import EpisodeRecord
from minefleet.v1.replay_service_pb2 import ActorProgress
from minefleet_learner.build import build_learner
from minefleet_learner.checkpoints.host_copy import Copier
from minefleet_learner.data.prefetcher import WAITING_FOR_FRAGMENTS
from minefleet_learner.diagnostics.parity import ParityError
from minefleet_learner.loop import Learner
from minefleet_learner.loop import run as run_learner
from minefleet_learner.metrics.collapse import LEAST
from minefleet_learner.training.optimizer_step import NonFiniteError
from minefleet_learner.training.update_report import UpdateReport
from minefleet_parameters.__main__ import body as serve_parameters
from minefleet_replay.__main__ import body as serve_replay
from minefleet_runtime.role_context import RoleContext

Make = Callable[..., Fragment]
ROW = (
    "iteration env_steps trained_steps policy_version episodes episode_return_mean episode_length_mean sps "
    "staleness_mean staleness_max reuse_mean policy_loss value_loss entropy approx_kl clip_fraction "
    "explained_variance grad_norm learner_wait_ratio wall_s learning_rate rho advantage_std value_mean ratio_max "
    "publish_blocked_s skipped_steps episode_metrics"
).split()
LENGTH = 6
FRAGMENTS = 4


def make_config(
    *, max_staleness: int = 1, shards: int = 1, minutes: float = 0.0, canary_share: float = 0.0, **train: Any
) -> FleetConfig:
    return FleetConfig(
        seed=3,
        stop=StopConfig(minutes=minutes),
        policy=PolicyConfig(hidden_size=8, hidden_layers=1),
        rollout_config=RolloutConfig(
            fragment_length=LENGTH,
            canary_share=canary_share,
            replay_buffer_config=ReplayBufferConfig(max_staleness=max_staleness),
        ),
        train_config=TrainConfig(
            batch_size_per_gpu=2, batches_per_iteration=FRAGMENTS // 2, **({"parity_bound": math.inf} | train)
        ),
        services=ServicesConfig(
            replay=[EndpointConfig(address=free_address()) for _ in range(shards)],
            parameters=EndpointConfig(address=free_address()),
        ),
    )


class Fleet:
    """A run directory, its servers, and an actor that makes noise."""

    def __init__(self, directory: Path, schema: Schema, make: Make, config: FleetConfig) -> None:
        self.run = Run(directory=directory, config=config, schema=schema, architecture="")
        self.run.write()
        self.shards = [
            self.context(shard.name, status_service_pb2.ROLE_REPLAY, shard.index) for shard in self.run.shards
        ]
        self.parameters = self.context("parameters", status_service_pb2.ROLE_PARAMETERS)
        identity = self.run.identity(status_service_pb2.ROLE_ACTOR)
        self.actors = [ReplayClient(shard.endpoint.address, identity=identity) for shard in self.run.shards]
        self.actor = self.actors[0]
        self.make = make
        self.made = 0
        self.threads: dict[str, tuple[threading.Thread, RoleContext]] = {}

    def serve(self, context: RoleContext) -> None:
        """Starts a server."""
        body = serve_parameters if context.role == status_service_pb2.ROLE_PARAMETERS else serve_replay
        thread = threading.Thread(target=body, args=(context,), name=context.name)
        thread.start()
        self.threads[context.name] = thread, context

    def stop(self, name: str) -> None:
        """Stops a server and waits for its end."""
        thread, context = self.threads.pop(name)
        context.stopping.set()
        thread.join()

    def close(self) -> None:
        """Ends everything."""
        for actor in self.actors:
            actor.close()
        for name in list(self.threads):
            self.stop(name)

    def context(self, name: str, role: status_service_pb2.Role.ValueType, index: int = 0) -> RoleContext:
        return RoleContext(run=self.run, role=role, name=name, index=index, registry=CollectorRegistry())

    def learner(self, *, background: bool = False) -> tuple[Learner, RoleContext]:
        context = self.context("learner", status_service_pb2.ROLE_LEARNER)
        return build_learner(context, background=background), context

    def train(self) -> Future[None]:
        """Runs a learner in a thread; returns when it waits for fragments."""
        learner, context = self.learner(background=True)
        pool = ThreadPoolExecutor(1)
        ended = pool.submit(train, learner, context.stopping)
        pool.shutdown(wait=False)
        self.wait_until(lambda: ended.done() or context.status.snapshot().detail == WAITING_FOR_FRAGMENTS)
        return ended

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits for something that others do."""
        pause = threading.Event()
        while not condition():
            pause.wait(0.01)

    def reads(self) -> float | None:
        """The number of Reads that the first shard has served to the end."""
        method = {"grpc_type": "server_stream", "grpc_service": "minefleet.v1.ReplayService", "grpc_method": "Read"}
        return self.shards[0].registry.get_sample_value("grpc_server_handled_total", method | {"grpc_code": "OK"})

    def run_id(self) -> str:
        """The run's, from its newest checkpoint, which a learner may replace meanwhile."""
        while True:
            latest = newest(self.run.checkpoints)
            assert latest is not None
            with contextlib.suppress(ConfigError):
                return read_state(latest).run_id

    def act(self, version: int, fragments: int = FRAGMENTS, **changes: Any) -> None:
        """Appends fragments, each with one finished episode, to all shards in turn."""
        run_id = self.run_id()
        for actor in self.actors:
            actor.position = Position(run_id=run_id)
        for number in range(self.made, self.made + fragments):
            fragment = self.make(number, LENGTH, terminated=(LENGTH - 1,), version=version, **changes)
            header = fragment_pb2.FragmentHeader(
                run_id=run_id,
                name=fragment_pb2.FragmentName(stream=f"actor.{number}"),
                schema_fingerprint=self.run.schema.fingerprint,
                closes_chunk=True,
            )
            packed = encode(header, fragment)
            episode = EpisodeRecord(
                stream=f"actor.{number}", episode_return=number, length=LENGTH, policy_version=version
            )
            self.actors[number % len(self.actors)].append(
                [packed],
                episodes=[episode],
                progress=ActorProgress(actor="actor", env_steps=LENGTH * (number // len(self.actors) + 1)),
            )
        self.made += fragments

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run.metrics.read_text().splitlines()]

    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads((self.run.directory / "result.json").read_text())
        return result


def iterate(learner: Learner) -> None:
    """One iteration as `PPOTrainer` makes it."""
    taken = learner.take()
    learner.finish_iteration(taken, learner.updater.update(taken.batch, taken.rates))


def train(learner: Learner, stopping: threading.Event) -> None:
    """Iterates until the run is over."""

    def until_over() -> None:
        while not learner.is_over and not stopping.is_set():
            iterate(learner)

    run_learner(learner, stopping, until_over)


@pytest.fixture
def fleet(tmp_path: Path, schema: Schema, make_fragment: Make) -> Iterator[Callable[..., Fleet]]:
    with contextlib.ExitStack() as stack:

        def start(**changes: Any) -> Fleet:
            made = Fleet(tmp_path, schema, make_fragment, make_config(**changes))
            for context in (*made.shards, made.parameters):
                made.serve(context)
            stack.callback(made.close)
            return made

        yield start


def test_learner_in_an_undisturbed_run_trains_publishes_acks_saves_and_ends(fleet: Callable[..., Fleet]) -> None:
    made = fleet(num_iterations=3, save_interval=2)
    learner, _ = made.learner()
    learner.start()
    version = 1
    while not learner.is_over:
        made.act(version)
        iterate(learner)
        version += 1
    learner.finish("signal")

    rows = made.rows()
    assert all(set(ROW) <= set(row) for row in rows)
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    assert [row["policy_version"] for row in rows] == [2, 3, 4]
    assert [row["env_steps"] for row in rows] == [LENGTH * FRAGMENTS * number for number in (1, 2, 3)]
    assert [row["trained_steps"] for row in rows] == [row["env_steps"] for row in rows]
    assert [row["episodes"] for row in rows] == [4, 8, 12]
    assert rows[-1]["episode_return_mean"] == sum(range(12)) / 12
    assert [row["staleness_max"] for row in rows] == [0, 0, 0]
    assert [row["reuse_mean"] for row in rows] == [1, 1, 1]
    assert made.result() | {"checkpoint": ""} == {
        "stopped_by": "num_iterations",
        "episode_return_mean": sum(range(12)) / 12,
        "env_steps": 72,
        "trained_steps": 72,
        "skipped_steps": 0,
        "iteration": 3,
        "checkpoint": "",
    }
    state = read_state(Path(made.result()["checkpoint"]))
    assert (state.iteration, state.version, state.stopped_by) == (3, 4, "num_iterations")
    assert {path.name for path in made.run.checkpoints.iterdir()} == {"00000002", "00000003", "latest"}


def test_an_iteration_that_publishes_nothing_is_acked_and_the_newest_version_stays(fleet: Callable[..., Fleet]) -> None:
    made = fleet(num_iterations=3)
    learner, _ = made.learner()
    learner.start()
    for version, new_version in ((1, False), (1, True), (2, True)):
        made.act(version)
        taken = learner.take()
        learner.finish_iteration(taken, UpdateReport(grad_norm=1.0), new_version=new_version)
    learner.finish("signal")
    rows = made.rows()
    assert [(row["iteration"], row["policy_version"]) for row in rows] == [(1, 1), (2, 2), (3, 3)]
    assert [row["trained_steps"] for row in rows] == [LENGTH * FRAGMENTS * number for number in (1, 2, 3)]
    assert made.result()["iteration"] == 3


def test_a_run_whose_actors_record_what_its_weights_do_not_say_stops_before_it_trains_on_that(
    fleet: Callable[..., Fleet],
) -> None:
    made = fleet(parity_bound=1e-4)
    learner, _ = made.learner()
    with contextlib.closing(learner):
        learner.start()
        made.act(1)
        with pytest.raises(ParityError, match=r"of actor\.\d/0 was recorded as"):
            iterate(learner)
    assert not made.rows()
    assert issubclass(ParityError, GaveUpError)


def test_a_run_without_fragments_ends_when_its_time_is_over(fleet: Callable[..., Fleet]) -> None:
    made = fleet(minutes=0.01)
    learner, context = made.learner()
    train(learner, context.stopping)
    assert (made.result()["stopped_by"], made.result()["iteration"]) == ("minutes", 0)


def test_minutes_of_a_launch_go_on_where_its_learner_is_started_again(
    fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fleet(minutes=1000.0)
    monkeypatch.setenv(LAUNCHED, str(time.monotonic() - 60_000.0))
    learner, context = made.learner()
    train(learner, context.stopping)
    assert made.result()["stopped_by"] == "minutes"


def test_learner_whose_trainer_returns_early_ends_the_run(fleet: Callable[..., Fleet]) -> None:
    made = fleet()
    learner, context = made.learner()
    run_learner(learner, context.stopping, lambda: None)
    assert made.result()["stopped_by"] == "trainer"


@pytest.mark.parametrize("shards", [2, 3])
def test_an_iteration_takes_its_part_from_every_shard_and_the_numbers_add_up(
    fleet: Callable[..., Fleet], shards: int
) -> None:
    made = fleet(num_iterations=2, shards=shards)
    learner, _ = made.learner()
    learner.start()
    for version in (1, 2):
        made.act(version, fragments=2 * shards)
        iterate(learner)
    learner.finish("signal")
    rows = made.rows()
    steps = 2 * LENGTH * shards
    assert [row["env_steps"] for row in rows] == [steps, 2 * steps]
    assert [row["trained_steps"] for row in rows] == [LENGTH * FRAGMENTS, 2 * LENGTH * FRAGMENTS]
    assert [row["episodes"] for row in rows] == [2 * shards, 4 * shards]
    state = read_state(made.run.checkpoints / "latest")
    assert state.episode_cursors == [4] * shards
    for shard, actor in enumerate(made.actors):
        assert actor.reserve(state.version, []).newest_version == state.version
        assert made.run.shards[shard].store.is_dir()


def test_learner_releases_the_lease_of_one_shard_when_another_has_nothing(fleet: Callable[..., Fleet]) -> None:
    made = fleet(shards=2)
    learner, context = made.learner(background=True)
    trained = threading.Thread(target=train, args=(learner, context.stopping))
    trained.start()
    waiting = threading.Event()
    while newest(made.run.checkpoints) is None:
        assert not waiting.wait(0.01)
    del made.actors[0]
    made.act(1)
    while context.status.snapshot().detail != WAITING_FOR_FRAGMENTS:
        assert not waiting.wait(0.01)
    context.stopping.set()
    trained.join()
    state, lender = read_state(made.run.checkpoints / "latest"), made.actors[0]
    lender.position = Position(run_id=state.run_id, epoch=state.epoch, version=state.version, first_version=1)
    assert len(lender.lease(99, steps=FRAGMENTS * LENGTH, use_version=state.version, wait_s=0).chunks) == FRAGMENTS


def test_a_stopped_run_is_taken_up_where_it_was(fleet: Callable[..., Fleet]) -> None:
    made = fleet()
    learner, context = made.learner()
    learner.start()
    for version in (1, 2):
        made.act(version)
        iterate(learner)
    made.act(3)
    context.stopping.set()
    learner.finish("signal")
    assert made.result()["stopped_by"] == "signal"
    before = read_state(made.run.checkpoints / "latest")

    learner, _ = made.learner()
    learner.start()
    assert not (made.run.directory / "result.json").exists()
    iterate(learner)  # Uses what replay still holds: nothing was made since.
    learner.finish("signal")
    after = read_state(made.run.checkpoints / "latest")
    assert after.run_id == before.run_id
    assert after.epoch == before.epoch + 1
    assert (before.version, after.version) == (3, 5)
    assert after.iteration == 3
    assert after.env_steps == 72
    assert [row["iteration"] for row in made.rows()] == [1, 2, 3]
    assert [row["episodes"] for row in made.rows()] == [4, 8, 12]


def test_checkpoints_lie_where_save_path_says(fleet: Callable[..., Fleet]) -> None:
    made = fleet(save_path="kept/here")
    learner, _ = made.learner()
    with contextlib.closing(learner):
        learner.start()
    assert (made.run.directory / "kept" / "here" / "latest" / "state.json").is_file()
    assert not (made.run.directory / "checkpoints").exists()


def test_wire_dtype_bfloat16_rounds_what_is_fetched_and_not_the_checkpoint(fleet: Callable[..., Fleet]) -> None:
    made = fleet(wire_dtype="bfloat16")
    learner, _ = made.learner()
    learner.start()
    learner.finish("signal")
    with contextlib.closing(ParametersClient(made.run.config.services.parameters.address)) as actor:
        _, fetched = actor.fetch()
    kept = read(made.run.checkpoints / "latest").policy
    rounded = {name for name in kept if not np.array_equal(kept[name], fetched[name])}
    assert "value_head.weight" in rounded
    assert not any(name.startswith("value_norm.") for name in rounded)
    assert all(np.array_equal(array, fetched[name]) for name, array in as_fetched(kept, rounded).items())


def test_a_crashed_learner_abandons_a_lineage_and_no_counter_goes_back(
    fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    made = fleet()
    learner, _ = made.learner()
    learner.start()
    made.act(1)
    iterate(learner)
    shutil.copytree(made.run.checkpoints, tmp_path / "kept", symlinks=True)
    made.act(2)
    iterate(learner)
    made.act(3)  # Acted by a version that the checkpoint does not know.
    learner.close()
    shutil.rmtree(made.run.checkpoints)
    (tmp_path / "kept").rename(made.run.checkpoints)
    before = read_state(made.run.checkpoints / "latest")
    assert (before.iteration, before.version) == (1, 2)

    learner, _ = made.learner()
    learner.start()
    made.act(4)
    iterate(learner)
    learner.finish("signal")
    rows, after = made.rows(), read_state(made.run.checkpoints / "latest")
    assert [row["iteration"] for row in rows] == [1, 2]
    assert [row["policy_version"] for row in rows] == [2, 5]
    assert [row["env_steps"] for row in rows] == [24, 96]
    assert [row["episodes"] for row in rows] == [4, 16]
    assert rows[-1]["staleness_max"] == 0
    assert after.run_id == before.run_id
    assert after.epoch == before.epoch + 1


def test_learner_prefetches_the_next_batch_and_releases_it_at_the_end(fleet: Callable[..., Fleet]) -> None:
    made = fleet(num_iterations=2, max_staleness=3)
    learner, context = made.learner(background=True)
    trained = threading.Thread(target=train, args=(learner, context.stopping))
    trained.start()
    watched = threading.Event()
    while newest(made.run.checkpoints) is None:
        assert not watched.wait(0.01)
    made.act(1, fragments=3 * FRAGMENTS)
    trained.join()
    assert made.result()["stopped_by"] == "num_iterations"
    assert [row["staleness_max"] for row in made.rows()] == [0, 1]
    state = read_state(made.run.checkpoints / "latest")
    made.actor.position = Position(run_id=state.run_id, epoch=state.epoch, version=state.version, first_version=1)
    lease = made.actor.lease(99, steps=FRAGMENTS * LENGTH, use_version=state.version, wait_s=0)
    assert len(lease.chunks) == FRAGMENTS


def test_a_stop_while_it_waits_for_fragments_ends_it_cleanly(fleet: Callable[..., Fleet]) -> None:
    made = fleet()
    learner, context = made.learner(background=True)
    trained = threading.Thread(target=train, args=(learner, context.stopping))
    trained.start()
    waiting = threading.Event()
    while context.status.snapshot().detail != WAITING_FOR_FRAGMENTS:
        assert not waiting.wait(0.01)
    context.stopping.set()
    trained.join()
    assert made.result()["stopped_by"] == "signal"
    assert read_state(made.run.checkpoints / "latest").version == 1


def test_learner_trains_on_while_parameters_is_away_and_acks_nothing_unpublished(fleet: Callable[..., Fleet]) -> None:
    made = fleet(num_iterations=3, max_staleness=2)
    learner, _ = made.learner(background=True)
    learner.start()
    made.act(1, fragments=3 * FRAGMENTS)
    made.stop("parameters")
    for _ in range(3):
        iterate(learner)
    assert learner.is_over
    assert made.rows() == []
    assert made.actor.reserve(1, []).newest_version == 1
    assert read_state(made.run.checkpoints / "latest").iteration == 0
    made.serve(made.context("parameters", status_service_pb2.ROLE_PARAMETERS))
    learner.finish("signal")
    assert [row["policy_version"] for row in made.rows()] == [2, 3, 4]
    assert [row["staleness_max"] for row in made.rows()] == [0, 1, 2]
    assert [row["trained_steps"] for row in made.rows()] == [LENGTH * FRAGMENTS * number for number in (1, 2, 3)]
    assert made.result()["iteration"] == 3
    assert read_state(made.run.checkpoints / "latest").version == 4


def test_learner_abandons_iterations_not_published_before_a_stop_and_releases_their_leases(
    fleet: Callable[..., Fleet],
) -> None:
    made = fleet(max_staleness=2)
    learner, context = made.learner(background=True)
    learner.start()
    made.act(1, fragments=2 * FRAGMENTS)
    made.stop("parameters")
    for _ in range(2):
        iterate(learner)
    context.stopping.set()
    learner.finish("signal")
    assert not (made.run.directory / "result.json").exists()
    state = read_state(made.run.checkpoints / "latest")
    assert (state.iteration, state.version) == (0, 0)
    made.actor.position = Position(run_id=state.run_id, epoch=1, version=1, first_version=1)
    assert len(made.actor.lease(99, steps=2 * FRAGMENTS * LENGTH, use_version=1, wait_s=0).chunks) == 2 * FRAGMENTS


def test_a_crash_between_publish_and_ack_saves_nothing_more_and_loses_no_fragment(fleet: Callable[..., Fleet]) -> None:
    made = fleet(max_staleness=3)
    learner, _ = made.learner(background=True)
    learner.start()
    made.act(1, fragments=2 * FRAGMENTS)
    iterate(learner)
    made.wait_until(lambda: len(made.rows()) == 1 and made.reads() == 2)  # The next batch has been fetched.
    made.stop("replay")
    iterate(learner)
    follower = ParametersClient(made.run.config.services.parameters.address)
    made.wait_until(lambda: follower.fetch()[0].version == 3)
    follower.close()
    learner.close()
    assert len(made.rows()) == 1
    assert read_state(made.run.checkpoints / "latest").iteration == 1

    made.serve(made.context("replay", status_service_pb2.ROLE_REPLAY))
    learner, _ = made.learner()
    learner.start()
    iterate(learner)
    learner.finish("signal")
    assert [row["policy_version"] for row in made.rows()] == [2, 5]
    assert [row["trained_steps"] for row in made.rows()] == [LENGTH * FRAGMENTS, 2 * LENGTH * FRAGMENTS]


class GatedCopier(Copier):
    """Copies when it is let; knows whether the tensors stood still until then."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.stood_still = True

    def copy(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, NDArray[Any]]:
        before = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self.gate.wait()
        self.stood_still &= all(torch.equal(tensor, before[name]) for name, tensor in tensors.items())
        return super().copy(tensors)


def test_the_loop_goes_on_while_weights_are_copied_and_changes_them_only_then(fleet: Callable[..., Fleet]) -> None:
    made = fleet(max_staleness=2)
    context, copier = made.context("learner", status_service_pb2.ROLE_LEARNER), GatedCopier()
    learner = build_learner(context, background=True, copier=copier)
    learner.start()
    made.act(1, 2 * FRAGMENTS)
    copier.gate.clear()
    iterate(learner)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(iterate, learner)
        with contextlib.suppress(TimeoutError):
            second.result(timeout=1.0)  # Long enough to change them, were they not waited for.
        copier.gate.set()
        second.result()
    learner.finish("signal")
    assert copier.stood_still
    assert [row["policy_version"] for row in made.rows()] == [2, 3]


def test_max_staleness_0_makes_every_iteration_wait_for_the_version_before(fleet: Callable[..., Fleet]) -> None:
    made = fleet(max_staleness=0, num_iterations=2)
    ended = made.train()
    made.act(1, fragments=3 * FRAGMENTS)
    made.wait_until(lambda: bool(made.rows()))
    made.act(2)
    ended.result()
    assert [row["staleness_max"] for row in made.rows()] == [0, 0]
    assert [row["policy_version"] for row in made.rows()] == [2, 3]


def test_a_run_that_is_over_waits_for_no_more_fragments(fleet: Callable[..., Fleet]) -> None:
    made = fleet()
    made.run = replace(made.run, config=replace(made.run.config, stop=StopConfig(env_steps=LENGTH)))
    ended = made.train()
    made.act(1)
    ended.result()
    assert made.result()["stopped_by"] == "env_steps"
    assert len(made.rows()) == 1


def test_a_learner_that_is_fenced_ends_with_that_although_it_waits_for_fragments(fleet: Callable[..., Fleet]) -> None:
    made = fleet()
    ended = made.train()
    successor = ParametersClient(made.run.config.services.parameters.address)
    successor.open_epoch(read_state(made.run.checkpoints / "latest").run_id)
    successor.close()
    made.act(1)
    with pytest.raises(FencedError):
        ended.result()
    assert made.rows() == []
    assert read_state(made.run.checkpoints / "latest").iteration == 0
    running = {thread.name.partition("_")[0] for thread in threading.enumerate()}
    assert not running & {"backlog", "prefetch", "checkpoint"}


def test_a_learner_gives_up_where_parameters_holds_another_run(fleet: Callable[..., Fleet]) -> None:
    made = fleet()
    other = ParametersClient(made.run.config.services.parameters.address)
    other.open_epoch("other")
    other.close()
    learner, _ = made.learner()
    with pytest.raises(GaveUpError, match="parameters holds run other, the learner is of run"):
        learner.start()
    learner.close()


def test_weights_that_are_not_finite_are_neither_published_nor_saved(fleet: Callable[..., Fleet]) -> None:
    made = fleet(save_interval=1, epochs_per_iteration=1, learning_rate=1e40)
    ended = made.train()
    made.act(1)
    with pytest.raises(NonFiniteError, match="are not published"):
        ended.result()
    assert read_state(made.run.checkpoints / "latest").iteration == 0
    assert made.actor.reserve(1, []).newest_version == 1


def test_a_damaged_checkpoint_is_refused_before_any_peer_hears_of_it(fleet: Callable[..., Fleet]) -> None:
    made = fleet()
    learner, _ = made.learner()
    learner.start()
    learner.finish("signal")
    (made.run.checkpoints / "latest" / "policy.safetensors").write_bytes(b"broken")
    learner, _ = made.learner()
    with pytest.raises(ConfigError, match=r"policy\.safetensors"):
        learner.start()
    learner.close()


def test_a_run_whose_end_is_reached_is_over_at_once(fleet: Callable[..., Fleet]) -> None:
    made = fleet()
    made.run = replace(made.run, config=replace(made.run.config, stop=StopConfig(env_steps=LENGTH)))
    for trained in (1, 0):
        learner, _ = made.learner()
        learner.start()
        for _ in range(trained):
            made.act(1)
            iterate(learner)
        assert learner.is_over
        learner.finish("signal")
        assert made.result()["stopped_by"] == "env_steps"
    assert len(made.rows()) == 1


@pytest.mark.parametrize("keep_best", [True, False])
def test_keep_best_keeps_the_checkpoint_with_the_best_return(fleet: Callable[..., Fleet], keep_best: bool) -> None:
    made = fleet(num_iterations=3, save_interval=0, keep_best=keep_best, max_staleness=8)
    learner, _ = made.learner()
    learner.start()
    made.act(1, fragments=FRAGMENTS * 6)  # Returns rise from fragment to fragment.
    iterate(learner)
    made.made = 0
    iterate(learner)
    iterate(learner)
    learner.finish("signal")
    assert (made.run.checkpoints / "best").exists() == keep_best
    if keep_best:
        state = read_state(made.run.checkpoints / "best")
        assert state.best_iteration == state.iteration
        assert state.best_return == pytest.approx(made.rows()[state.iteration - 1]["episode_return_mean"])


def test_a_policy_without_memory_trains_on_the_steps_of_the_burn_in(fleet: Callable[..., Fleet]) -> None:
    made = fleet(num_iterations=1, burn_in=2)
    learner, _ = made.learner()
    learner.start()
    made.act(1)
    iterate(learner)
    learner.finish("signal")
    assert made.rows()[0]["burn_in_steps"] == 0  # This policy has no memory to warm up.
    assert made.result()["trained_steps"] == FRAGMENTS * LENGTH


def test_learner_that_is_rolled_back_goes_on_from_the_older_checkpoint_without_what_later_versions_did(
    fleet: Callable[..., Fleet],
) -> None:
    made = fleet(num_iterations=6, save_interval=2, keep_interval=2)
    learner, _ = made.learner()
    with contextlib.closing(learner):
        learner.start()
        for version in (1, 2, 3, 4):
            made.act(version)
            iterate(learner)
        made.act(5)
        ask(made.run.directory, rollback="3")
        with pytest.raises(RolledBackError, match="goes back to iteration 2"):
            iterate(learner)
    assert not (made.run.directory / "result.json").exists()
    with contextlib.closing(ParametersClient(made.run.config.services.parameters.address)) as client:
        client.open_epoch(made.run_id())  # As if one more was on its way to be published when that was answered.
        client.publish(client.fetch()[1], iteration=5)
    made.act(6)

    again, context = made.learner()
    with contextlib.closing(again):
        again.start()
        assert read_state(newest(made.run.checkpoints) or made.run.directory).iteration == 2
        pending = ThreadPoolExecutor(1).submit(iterate, again)
        made.wait_until(lambda: context.status.snapshot().detail == WAITING_FOR_FRAGMENTS)
        made.act(7)
        pending.result()
        made.act(8)
        iterate(again)
    rows = made.rows()
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4]
    assert [row["policy_version"] for row in rows] == [2, 3, 8, 9]
    assert [row["episodes"] for row in rows] == [4, 8, 16, 20]  # Version 3, which is the checkpoint's, had four more.
    assert [row["staleness_max"] for row in rows] == [0, 0, 0, 0]
    assert {path.name for path in (made.run.checkpoints / "set-aside").iterdir()} == {"00000004"}


def promotions(made: Fleet) -> dict[int, int]:
    """The version that each version promoted which is still kept."""
    with contextlib.closing(ParametersClient(made.run.config.services.parameters.address)) as client:
        return {info.version: info.promoted for info in client.versions()}


def canaries(fleet: Callable[..., Fleet], **changes: Any) -> Fleet:
    return fleet(canary_share=0.25, max_staleness=3, **changes)


def test_a_version_is_promoted_when_two_more_are_published(fleet: Callable[..., Fleet]) -> None:
    made = canaries(fleet, num_iterations=5)
    learner, _ = made.learner()
    learner.start()
    for version in range(1, 6):
        made.act(version)
        iterate(learner)
    assert promotions(made) == {1: 1, 2: 1, 3: 1, 4: 2, 5: 3, 6: 4}
    learner.finish("signal")


def test_a_restart_promotes_no_canary_and_leaves_the_promoted_weights_as_fresh_as_before(
    fleet: Callable[..., Fleet],
) -> None:
    made = canaries(fleet)
    learner, _ = made.learner()
    learner.start()
    for version in range(1, 5):
        made.act(version)
        iterate(learner)
    learner.finish("signal")
    with contextlib.closing(ParametersClient(made.run.config.services.parameters.address)) as client:
        before, promoted = client.fetch()
        resumed, _ = made.learner()
        resumed.start()
        after, again = client.fetch()
        newest, canary = client.fetch(canary=True)
    assert promotions(made) == {1: 1, 2: 1, 3: 1, 4: 2, 5: 3, 6: 6, 7: 6}
    assert (before.version, before.iteration) == (3, 2)
    assert (after.version, after.iteration, newest.version, newest.iteration) == (6, 2, 7, 4)
    assert all(np.array_equal(promoted[name], again[name]) for name in promoted)
    assert not all(np.array_equal(promoted[name], canary[name]) for name in promoted)
    for version in (6, 7):
        made.act(version)
        iterate(resumed)
    assert promotions(made)[9] == 7
    resumed.finish("signal")


@contextlib.contextmanager
def training(made: Fleet) -> Iterator[tuple[RoleContext, Callable[[Callable[[], bool]], None]]]:
    """A learner in a thread, and what makes the fragments that it needs until something is so."""
    learner, context = made.learner(background=True)
    fed = 0
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(train, learner, context.stopping)

        def feed(until: Callable[[], bool]) -> None:
            nonlocal fed
            while not until():
                assert not ended.done()
                version = max(promotions(made), default=0) if newest(made.run.checkpoints) else 0
                if version > fed:
                    made.act(fed := version)

        try:
            yield context, feed
        finally:
            context.stopping.set()
    ended.result()


def test_a_collapse_is_not_published_and_pauses_every_learner_until_a_request_is_granted(
    fleet: Callable[..., Fleet],
) -> None:
    made = canaries(fleet, learning_rate=1e-4)

    def pauses() -> list[str]:
        return [line["reason"] for line in read_whole_journal(made.run.directory) if line["event"] == PAUSE]

    with training(made) as (context, feed):
        feed(lambda: context.status.snapshot().stats.get("iteration", 0) > LEAST)
        ask(made.run.directory, set={"train_config.learning_rate": 100.0})
        feed(lambda: context.status.snapshot().state == status_service_pb2.STATE_PAUSED)
        (reason,), version = pauses(), max(promotions(made))
        assert reason in context.status.snapshot().detail
        too_fast = [row["policy_version"] for row in made.rows() if row["learning_rate"] > 1]
        assert too_fast == [version] and promotions(made)[version] < version  # The first sign; the second is withheld.
        refused = ask(made.run.directory, set={"train_config.discount": 0.5})  # It may wait for fragments meanwhile.
        made.wait_until(lambda: refused in answers_in(read_whole_journal(made.run.directory)))
    assert (version, max(promotions(made))) == (made.rows()[-1]["policy_version"],) * 2
    with training(made) as (context, feed):
        made.wait_until(lambda: context.status.snapshot().state == status_service_pb2.STATE_PAUSED)
        assert pauses() == [reason] and reason in context.status.snapshot().detail
        ask(made.run.directory, set={"train_config.learning_rate": 1e-4})
        feed(lambda: int(made.rows()[-1]["policy_version"]) > version + 4)
    assert pauses() == [reason]


def test_a_learner_that_waits_for_fragments_answers_requests_and_steps_back(fleet: Callable[..., Fleet]) -> None:
    made = fleet()
    ended = made.train()
    asked = ask(made.run.directory, set={"train_config.learning_rate": 0.5})
    made.wait_until(lambda: asked in answers_in(read_whole_journal(made.run.directory)))
    assert answers_in(read_whole_journal(made.run.directory))[asked]["iteration"] == 3
    ask(made.run.directory, rollback="0")
    with pytest.raises(RolledBackError):
        ended.result()


@pytest.mark.parametrize("asked", [{"set": {"train_config.learning_rate": 0.5}}, {"rollback": "0"}])
def test_a_pause_in_the_last_iteration_ends_by_a_request(fleet: Callable[..., Fleet], asked: dict[str, Any]) -> None:
    made = canaries(fleet, parity_bound=1e-9, num_iterations=1)
    ended = made.train()
    made.act(1)
    made.wait_until(lambda: any(line["event"] == PAUSE for line in read_whole_journal(made.run.directory)))
    ask(made.run.directory, **asked)
    if "set" in asked:
        ended.result()
        assert made.result()["iteration"] == 1
    else:
        with pytest.raises(RolledBackError):
            ended.result()


def test_a_paused_learner_ends_once_another_has_started(fleet: Callable[..., Fleet]) -> None:
    made = canaries(fleet, parity_bound=1e-9)
    ended = made.train()
    made.act(1)
    made.wait_until(lambda: any(line["event"] == PAUSE for line in read_whole_journal(made.run.directory)))
    record_start(made.run, read_state(newest(made.run.checkpoints) or made.run.directory), "another")
    with pytest.raises(FencedError, match="another learner has started"):
        ended.result()
