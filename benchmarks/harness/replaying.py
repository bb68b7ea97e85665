"""Runs of nothing but replay, for fragments of one kind; and one role of a run as a process."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import environ
from pathlib import Path

from harness.fragments import CACHE
from minefleet.config import EnvConfig, FleetConfig, ReplayBufferConfig, RolloutConfig, TrainConfig
from minefleet.core.parent_death import tied
from minefleet.core.schema import Leaf, Schema
from minefleet.rpc.replay_client import ReplayClient
from minefleet.rpc.replay_types import Position
from minefleet.runs.run_yaml import Run
from minefleet.v1 import status_service_pb2

RUN_ID = "benchmark"
LEARNER = Position(run_id=RUN_ID, epoch=1, version=1, resumed_version=0, first_version=1)
POLL_S = 0.05


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory on the disk of the repository: /tmp may be memory."""
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as directory:
        yield Path(directory)


def make_run(
    directory: Path, frame: tuple[int, ...], buffer: ReplayBufferConfig, per_lease: int, fragment_length: int = 64
) -> Run:
    """Writes a run directory whose observations are frames, and whose limits count fragments of so many steps."""
    config = FleetConfig(
        env=EnvConfig(id="minefleet/Crafter-v0"),
        train_config=TrainConfig(batch_size_per_gpu=per_lease),
        rollout_config=RolloutConfig(fragment_length=fragment_length, replay_buffer_config=buffer),
    )
    schema = Schema(
        obs=Leaf(kind="box", shape=frame, dtype="uint8", low=0, high=255),
        action=Leaf(kind="discrete", shape=(), dtype="int64", categories=(17,)),
    )
    run = Run(directory=directory, config=config, schema=schema, architecture="none")
    run.write()
    return run


class Server:
    """A role's process."""

    def __init__(self, run: Run, role: str, process: subprocess.Popen[bytes]) -> None:
        self.run = run
        self.role = role
        self.pid = process.pid
        self.address = ""
        self.metrics_address = ""
        self._process = process

    def outlive(self, seconds: float) -> None:
        """Waits so long.

        Raises:
            RuntimeError: If the process ends meanwhile.
        """
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
            raise RuntimeError(f"{self.role} ended: {_log(self.run, self.role).read_text()}")

    def client(self, role: status_service_pb2.Role.ValueType, position: Position) -> ReplayClient:
        """A client of replay that has introduced itself."""
        client = ReplayClient(self.address, identity=self.run.identity(role), position=position)
        client.describe()
        return client


@contextmanager
def serving(run: Run, role: str = "replay", index: int = 0) -> Iterator[Server]:
    """Runs `python -m minefleet_ROLE` on a run directory until the block ends; `index` tells actors apart."""
    command = [sys.executable, "-m", f"minefleet_{role}", "--run-dir", str(run.directory), "--index", str(index)]
    name = f"actor-{index}" if role == "actor" else role
    card = run.directory / "roles" / f"{name}.json"
    card.unlink(missing_ok=True)
    with _log(run, name).open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environ | tied())
    server = Server(run, name, process)
    try:
        while not server.address:
            server.outlive(POLL_S)
            if card.exists():
                places = json.loads(card.read_text())
                server.address, server.metrics_address = places["address"], places["metrics_address"]
        yield server
    finally:
        process.terminate()
        process.wait()


def _log(run: Run, role: str) -> Path:
    return run.directory / f"{role}.log"
