"""Both sides of `benchmarks/weights.py`: a parameters process with a learner and actors, and bare gRPC streams."""

import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from harness.processes import Child, child
from harness.replaying import RUN_ID, Server, make_run, scratch, serving
from harness.weights_bare import UPLOAD, as_is
from harness.weights_set import Weights, total_bytes
from minefleet.config import ReplayBufferConfig
from minefleet.rpc.channel import connect
from minefleet.rpc.message_pieces import pieces
from minefleet.rpc.parameters_client import ParametersClient

BARE_KINDS = ("sync", "aio")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ours:
    """A parameters process and its learner."""

    server: Server
    learner: ParametersClient

    def publish(self, weights: Weights) -> float:
        """Publishes; returns the seconds until it was acked."""
        os.sync()
        began_s = time.monotonic()
        self.learner.publish(weights, iteration=0)
        return time.monotonic() - began_s

    def fetch(self, weights: Weights, actors: Sequence[Child]) -> float:
        """Publishes; returns the seconds from the announcement until the last actor had all tensors."""
        os.sync()
        version = self.learner.publish(weights, iteration=0)
        heard_s = [time.monotonic()]
        answers = [actor.hear() for actor in actors]
        if any(answer["version"] != version or answer["tensors"] != len(weights) for answer in answers):
            raise RuntimeError(f"actors fetched {answers} instead of version {version}")
        heard_s += [answer["heard_s"] for answer in answers]
        return float(max(answer["done_s"] for answer in answers) - min(heard_s))

    @contextmanager
    def followed(self, actors: int) -> Iterator[list[Child]]:
        """Runs actors that have fetched the newest version."""
        with ExitStack() as stack:
            arguments = ("harness.weights_reader", "ours", self.server.address)
            readers = [stack.enter_context(child(*arguments)) for _ in range(actors)]
            for reader in readers:
                reader.hear()
            yield readers


@contextmanager
def ours(weights: Weights, rounded: Collection[str] = ()) -> Iterator[Ours]:
    """Runs parameters and publishes its first version; the tensors named in `rounded` travel as bfloat16."""
    with scratch() as directory:
        run = make_run(directory, (64, 64, 3), ReplayBufferConfig(), per_lease=1)
        with serving(run, "parameters") as server:
            learner = ParametersClient(server.address, rounded=rounded)
            learner.open_epoch(RUN_ID)
            learner.publish(weights, iteration=0)
            yield Ours(server=server, learner=learner)
            learner.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class Bare:
    """A bare server."""

    address: str

    def upload(self, weights: Weights) -> float:
        """Sends the weights as they come; returns the seconds until they were synced."""
        messages = list(pieces(b"".join(array.tobytes() for array in weights.values())))
        os.sync()
        with connect(self.address) as channel:
            grpc.channel_ready_future(channel).result(10)
            began_s = time.monotonic()
            channel.stream_unary(UPLOAD, as_is, as_is)(iter(messages))
            return time.monotonic() - began_s

    def download(self, weights: Weights, readers: Sequence[Child]) -> float:
        """Returns the seconds from telling readers to begin until the last had all bytes."""
        os.sync()
        began_s = time.monotonic()
        for reader in readers:
            reader.tell()
        answers = [reader.hear() for reader in readers]
        if any(answer["received_bytes"] != total_bytes(weights) for answer in answers):
            raise RuntimeError(f"readers received {answers} instead of {total_bytes(weights)} bytes")
        return float(max(answer["done_s"] for answer in answers) - began_s)

    @contextmanager
    def read(self, readers: int) -> Iterator[list[Child]]:
        """Runs readers that are connected."""
        with ExitStack() as stack:
            arguments = ("harness.weights_reader", "bare", self.address)
            running = [stack.enter_context(child(*arguments)) for _ in range(readers)]
            for reader in running:
                reader.hear()
            yield running


@contextmanager
def bare(kind: str, size_bytes: int) -> Iterator[Bare]:
    """Runs a bare server, `sync` or `aio`, whose downloads have so many bytes."""
    with scratch() as directory, child("harness.weights_bare", kind, str(Path(directory)), str(size_bytes)) as server:
        yield Bare(address=server.hear())
