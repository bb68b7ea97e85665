"""Replay without a network, with a clock that is moved (`make_world`), and as a service (`make_server`)."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry
from tests.minefleet_replay.recount import recount

from minefleet.config import EnvConfig, FleetConfig, ReplayBufferConfig, RolloutConfig, ServicesConfig, TrainConfig
from minefleet.core.schema import Leaf, Schema
from minefleet.rpc.codec import checksum
from minefleet.rpc.message_pieces import pieces
from minefleet.rpc.replay_client import ReplayClient
from minefleet.rpc.replay_types import Position
from minefleet.runs.run_yaml import Run
from minefleet.v1 import episode_pb2, fragment_pb2, status_service_pb2, tensor_pb2
from minefleet_replay.engine.append import FragmentUpload
from minefleet_replay.engine.lease import LeaseRequest
from minefleet_replay.engine.metrics import ReplayMetrics
from minefleet_replay.engine.open_replay import open_replay
from minefleet_replay.engine.replay import Replay
from minefleet_replay.engine.verified_fragment_reads import grouped
from minefleet_replay.service import ReplayServicer, add_to_server
from minefleet_replay.state.actor_step_totals import NO_COUNTS, ActorCounts
from minefleet_replay.state.chunk import Chunk
from minefleet_replay.state.deduplication import ChunkName
from minefleet_replay.state.limits import Limits, limits_of
from minefleet_replay.state.stream_pace import StreamState
from minefleet_runtime.grpc_server.serve import serving
from minefleet_runtime.role_context import RoleContext

RUN = "run-1"
SCHEMA = Schema(
    obs=Leaf(kind="box", shape=(4,), dtype="float32"),
    action=Leaf(kind="discrete", shape=(), dtype="int64", categories=(2,)),
)


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class World:
    """A replay with one learner. A fragment has one step unless told otherwise, a chunk `per_chunk` fragments."""

    def __init__(self, directory: Path, *, per_chunk: int = 1, max_chunks: int = 100, **limits: Any) -> None:
        defaults = {
            "steps_per_iteration": 2,
            "chunk_steps": per_chunk,
            "max_steps": max_chunks * per_chunk,
            "max_bytes": 2**26,
            "least_steps": 1,
            "max_reuse": 1,
            "max_staleness": 1,
            "grant_timeout_s": 60.0,
        }
        self.per_chunk = per_chunk
        base = Limits(**(defaults | limits))
        self.limits = replace(base, follow=lambda settings: replace(self.limits, **json.loads(settings or "{}")))
        self.clock = Clock()
        self.learner = Position(epoch=1, version=1, resumed_version=0, first_version=1)
        self.runs: list[str] = []
        self.closed = False
        self._directories = (directory / str(number) for number in count())
        self.directory = next(self._directories)
        self.replay = self.open()
        self.replay.bind(RUN)

    def open(self) -> Replay:
        return open_replay(
            self.directory,
            self.limits,
            ReplayMetrics(CollectorRegistry()),
            clock=self.clock,
            wall_clock=self.clock,
            rng=Random(0),
            bound=self.runs.append,
        )

    def restart(self) -> None:
        """Closes and opens again."""
        self.replay.close()
        self.replay = self.open()

    def crash(self, look: Callable[[Path], None] = lambda _: None) -> None:
        """Opens what the files hold now, after a look at them: what a process would find that was killed."""
        killed, before = self.replay, self.directory
        self.directory = next(self._directories)
        # Otherwise compaction changes the files while they are copied. The database cannot be closed in order then.
        killed.transactions.store._database.cancel_all_background(True)
        shutil.copytree(before, self.directory)
        with pytest.raises(Exception, match="Shutdown in progress"):
            killed.close()
        shutil.rmtree(before)
        look(self.directory)
        self.replay = self.open()

    def close(self) -> None:
        """Closes the store; once is enough."""
        if not self.closed:
            self.closed = True
            self.replay.close()
            shutil.rmtree(self.directory)

    def append(
        self,
        stream: str,
        sequence: int,
        version: int = 1,
        *,
        newest: int = 0,
        payload: bytes = b"payload",
        closes: bool = False,
        chunk: tuple[int, int] | None = None,
        steps: int = 1,
        task: str = "",
    ) -> str:
        """Appends a fragment; `chunk` is the number of its chunk and where that starts."""
        number, start = chunk or (sequence // self.per_chunk, sequence // self.per_chunk * self.per_chunk)
        closes = closes or sequence == start + self.per_chunk - 1
        header = header_of(stream, sequence, version, newest, payload, (number, start, closes), steps)
        header.task = task
        outcome = self.replay.append(FragmentUpload(header=header, pieces=list(pieces(payload))))
        assert outcome is not None
        self.replay.sync_appends()
        return outcome

    def report(self, *episodes: tuple[str, int], actor: str = "", progress: ActorCounts = NO_COUNTS) -> None:
        records = [episode_pb2.EpisodeRecord(stream=stream, episode=number) for stream, number in episodes]
        self.replay.append(FragmentUpload(episodes=records, actor=actor, progress=progress))

    def reserve(self, *names: tuple[str, int], version: int = 1) -> list[bool]:
        return [grant.granted for grant in self.replay.reserve(version, [ChunkName(*name) for name in names]).grants]

    def say(self, stream: str, chunk: int, *, step_s: float, oldest: int | None = None, task: str = "") -> None:
        """Sends an actor's report of a stream."""
        self.replay.reserve(self.learner.version, [], [StreamState(stream, chunk, oldest, step_s, task)])

    def lease(
        self,
        number: int,
        chunks: int,
        use_version: int | None = None,
        order: Any = "oldest",
        wait_s: float = 0.0,
        **settings: Any,
    ) -> list[Chunk]:
        """Leases chunks; `settings` are limits by their names, as if those were the keys."""
        version = self.learner.version if use_version is None else use_version
        wanted = LeaseRequest(
            number=number,
            steps=chunks * self.per_chunk,
            use_version=version,
            order=order,
            settings=json.dumps(settings) if settings else "",
        )
        return self.replay.lease(self.learner, wanted, wait_s)

    def ack(self, number: int) -> None:
        self.replay.close_lease(self.learner, number, "acked")

    def release(self, number: int) -> None:
        self.replay.close_lease(self.learner, number, "released")

    def hear(self, version: int) -> None:
        """The learner publishes."""
        self.become(self.learner.epoch, version, self.learner.resumed_version, self.learner.first_version)

    def become(self, epoch: int, version: int, resumed: int, first: int) -> None:
        """A learner makes itself known."""
        self.learner = Position(epoch=epoch, version=version, resumed_version=resumed, first_version=first)
        self.replay.read_episodes(self.learner, 0, 1)

    def figure(self, name: str) -> int:
        return int(self.replay.stats()[name])

    @staticmethod
    def names(lent: list[Chunk]) -> list[tuple[str, int]]:
        return [(chunk.name.stream, chunk.name.number) for chunk in lent]

    def payloads(self, lent: list[Chunk]) -> list[bytes | None]:
        """Reads leased chunks; None for what is corrupt."""
        found = self.replay.fetch([wish for wishes in grouped(lent) for wish in wishes])
        return [b"".join(stored[1]) if stored is not None else None for stored in found]

    def spoil(self, number: int) -> None:
        """Changes the bytes of a fragment on the disk."""
        spoil(self.replay, number)

    def faults(self) -> list[str]:
        """The disagreements between the ledger and the rows."""
        return list(recount(self.replay.transactions.store).faults())


def spoil(replay: Replay, number: int) -> None:
    """Changes the bytes of a fragment on the disk."""
    keeper = replay.transactions
    (place,) = (one.place for chunk in keeper.state.index for one in chunk.fragments if one.number == number)
    with keeper.payloads.path(place.file).open("r+b") as file:
        file.seek(place.offset)
        file.write(b"!")


def header_of(
    stream: str, sequence: int, version: int, newest: int, payload: bytes, chunk: tuple[int, int, bool], steps: int = 1
) -> fragment_pb2.FragmentHeader:
    return fragment_pb2.FragmentHeader(
        run_id=RUN,
        name=fragment_pb2.FragmentName(stream=stream, sequence=sequence),
        length=steps,
        oldest_version=version,
        newest_version=max(version, newest),
        checksum=checksum(payload),
        payload_bytes=len(payload),
        chunk=chunk[0],
        chunk_start=chunk[1],
        closes_chunk=chunk[2],
    )


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Makes worlds, by their limits; closes them in the end."""
    worlds: list[World] = []

    def make(**limits: Any) -> World:
        worlds.append(World(tmp_path / f"world-{len(worlds)}", **limits))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    """A world with small limits."""
    return make_world()


class Server:
    """A replay service on a free port, with its own store. Fragments have one step."""

    def __init__(self, directory: Path, **replay: Any) -> None:
        self.per_chunk = replay.get("fragments_per_chunk", 1)
        buffer = {"max_chunks": 50, "max_bytes": 2**26, "fragments_per_chunk": 1} | replay
        config = FleetConfig(
            env=EnvConfig(id="CartPole-v1"),
            train_config=TrainConfig(batch_size_per_gpu=2),
            rollout_config=RolloutConfig(fragment_length=1, replay_buffer_config=ReplayBufferConfig(**buffer)),
            services=ServicesConfig(drain_s=2.0),
        )
        self.run = Run(directory=directory, config=config, schema=SCHEMA, architecture="abc")
        self.address = "127.0.0.1:0"
        self.registry = CollectorRegistry()

    @contextmanager
    def serve(self) -> Iterator[Replay]:
        """Serves until the block ends; again on the same port when entered again."""
        self.registry = CollectorRegistry()
        context = RoleContext(run=self.run, role=status_service_pb2.ROLE_REPLAY, name="replay", registry=self.registry)
        self.status = context.status
        limits, metrics = limits_of(self.run), ReplayMetrics(self.registry)
        replay = open_replay(self.run.replay, limits, metrics, bound=context.status.set_run)
        servicer = ReplayServicer(replay, limits, metrics)

        def register(server: grpc.Server) -> None:
            add_to_server(servicer, server)

        try:
            with serving(context, self.address, register) as self.address:
                yield replay
                replay.stop_waiting()
        finally:
            replay.close()

    def client(self, **arguments: Any) -> ReplayClient:
        identity = self.run.identity(status_service_pb2.ROLE_ACTOR)
        position = Position(run_id=RUN, epoch=1, version=1, resumed_version=0, first_version=1)
        defaults: dict[str, Any] = {"identity": identity, "position": position}
        return ReplayClient(self.address, **(defaults | arguments))

    def header(self, stream: str, sequence: int, payload: bytes = b"payload") -> fragment_pb2.FragmentHeader:
        number, place = divmod(sequence, self.per_chunk)
        header = header_of(stream, sequence, 1, 1, payload, (number, sequence - place, place == self.per_chunk - 1))
        header.schema_fingerprint = SCHEMA.fingerprint
        header.raw_bytes = len(payload)
        header.tensors.add(
            name="obs",
            dtype=tensor_pb2.DTYPE_UINT8,
            shape=[1, len(payload)],
            codec=tensor_pb2.CODEC_NONE,
            packed_bytes=len(payload),
        )
        return header

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"minefleet_replay_{name}", labels) or 0.0


@pytest.fixture
def make_server(tmp_path: Path) -> Callable[..., Server]:
    """Makes servers that do not serve yet, by their replay_buffer_config."""
    return lambda **replay: Server(tmp_path, **replay)
