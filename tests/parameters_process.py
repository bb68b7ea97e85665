"""Parameters as a process that tests hurt, and the messages that it is told."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray
from tests.role_process import TIMEOUT_S, RoleProcess, free_address

from minefleet.config import EndpointConfig, FleetConfig, ServicesConfig
from minefleet.config.security import SecurityConfig
from minefleet.core.schema import Leaf, Schema
from minefleet.rpc.channel import connect
from minefleet.rpc.message_pieces import PIECE_BYTES
from minefleet.rpc.parameters_client import ParametersClient
from minefleet.rpc.weights.manifest import describe
from minefleet.runs.run_yaml import Run
from minefleet.v1 import parameters_service_pb2 as pb
from minefleet.v1 import parameters_service_pb2_grpc, weights_pb2

RUN = "run"
OPEN = SecurityConfig()

Weights = dict[str, NDArray[Any]]


class ParametersProcess(RoleProcess):
    """The parameters of one run, on ports of its own."""

    def __init__(self, directory: Path, *, address: str = "", security: SecurityConfig = OPEN) -> None:
        super().__init__("minefleet_parameters", directory, free_address())
        self.address = address or free_address()
        endpoint = EndpointConfig(address=self.address, metrics_address=self.metrics_address)
        leaf = Leaf(kind="box", shape=(2,), dtype="float32")
        self.run = Run(
            directory=directory,
            config=FleetConfig(services=ServicesConfig(parameters=endpoint, drain_s=5.0, security=security)),
            schema=Schema(obs=leaf, action=leaf),
            architecture="",
        )
        self.run.write()

    @property
    def store(self) -> Path:
        return self.run.parameters

    @contextmanager
    def client(self, address: str = "", **arguments: Any) -> Iterator[ParametersClient]:
        client = ParametersClient(address or self.address, **({"patience_s": TIMEOUT_S} | arguments))
        try:
            yield client
        finally:
            client.close()

    @contextmanager
    def stub(self) -> Iterator[parameters_service_pb2_grpc.ParametersServiceStub]:
        with connect(self.address) as channel:
            yield parameters_service_pb2_grpc.ParametersServiceStub(channel)

    def leftovers(self) -> set[str]:
        """Files that no kept version needs, at a time when nobody publishes."""
        with self.stub() as stub:
            kept = stub.ListVersions(pb.ListVersionsRequest(), timeout=TIMEOUT_S).versions
        needed = {"lock", "identity.json"}
        for record in (self.store / f"versions/{info.version}.json" for info in kept):
            tensors = json.loads(record.read_text())["manifest"]["tensors"]
            needed |= {f"versions/{record.name}", *(f"tensors/{entry['digest']}.safetensors" for entry in tensors)}
        found = {str(path.relative_to(self.store)) for path in self.store.rglob("*") if path.is_file()}
        return found - needed


def weights_of(seed: int, size_bytes: int = 2**15) -> Weights:
    """Weights of about `size_bytes` that differ from seed to seed, but for a frozen quarter."""
    count = size_bytes // 16
    return {
        "frozen": np.random.default_rng(0).standard_normal(count, np.float32),
        "trained": np.random.default_rng(seed + 1).standard_normal((2, count), np.float32),
        "half": np.random.default_rng(seed + 1).standard_normal(count, np.float32).astype(np.float16),
        "scale": np.array([float(seed)]),
        "steps": np.array(seed),
    }


def header_of(weights: Weights, *, expected: int, epoch: int = 1, run_id: str = RUN) -> pb.PublishHeader:
    manifest, _ = describe(weights)
    return pb.PublishHeader(run_id=run_id, epoch=epoch, expected_version=expected, manifest=manifest)


def pieces_of(weights: Weights) -> list[weights_pb2.TensorPiece]:
    return [
        weights_pb2.TensorPiece(digest=digest, offset=offset, data=part[offset : offset + PIECE_BYTES].tobytes())
        for digest, part in describe(weights)[1].items()
        for offset in range(0, part.nbytes, PIECE_BYTES)
    ]


def messages_of(header: pb.PublishHeader, pieces: Sequence[weights_pb2.TensorPiece]) -> list[pb.PublishRequest]:
    return [pb.PublishRequest(header=header), *(pb.PublishRequest(pieces=[piece]) for piece in pieces)]


def status_of(call: Callable[[], Any]) -> grpc.StatusCode:
    """The status code of a call."""
    try:
        call()
    except grpc.RpcError as error:
        assert isinstance(error, grpc.Call)
        return error.code()
    return grpc.StatusCode.OK
