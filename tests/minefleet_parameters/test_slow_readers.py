"""Readers that stand still in the middle of a fetch."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from minefleet.rpc.channel import CLIENT_OPTIONS
from minefleet.rpc.message_pieces import PIECE_BYTES
from minefleet.rpc.parameters_client import ParametersClient
from minefleet.rpc.weights.tensor_downloads import Downloads
from minefleet.v1 import parameters_service_pb2 as pb
from minefleet.v1 import parameters_service_pb2_grpc

Parameters = Any
"""The `Parameters` of conftest.py, which cannot be imported here."""

READERS = 40
"""More than the threads of asyncio's default pool on any machine: it has at most 32."""
TENSORS = 6
PUBLISHES = 20
PATIENCE_S = 120.0


def weights(seed: int) -> dict[str, NDArray[np.float32]]:
    """Every tensor differs from every other, and from those of other seeds."""
    return {f"layer.{index}": np.full(PIECE_BYTES // 4, seed * TENSORS + index, np.float32) for index in range(TENSORS)}


@pytest.fixture
def parameters(tmp_path: Path, run_parameters: Callable[..., Any]) -> Iterator[Parameters]:
    with run_parameters(tmp_path, keep=3) as started:
        yield started


class Reader:
    """A fetch of the newest version on a connection of its own, which only goes on when it is asked to."""

    def __init__(self, address: str, stack: ExitStack) -> None:
        options = (*CLIENT_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
        self.downloads = Downloads()
        stub = parameters_service_pb2_grpc.ParametersServiceStub(
            stack.enter_context(grpc.insecure_channel(address, options))
        )
        (first,) = stub.Fetch(pb.FetchRequest(), timeout=PATIENCE_S)
        self.version = first.version
        request = pb.FetchRequest(version=self.version.version, ranges=self.downloads.want(self.version.manifest))
        self._call = stub.Fetch(request, timeout=PATIENCE_S)
        stack.callback(self._call.cancel)
        next(self._call)

    def fetched(self) -> dict[str, bytes]:
        """All tensors by name, once it has finished."""
        return {entry.name: self.downloads[entry.digest].tobytes() for entry in self.version.manifest.tensors}

    def finish(self) -> grpc.StatusCode:
        """Takes the rest; returns how it ended."""
        try:
            for response in self._call:
                for piece in response.pieces:
                    self.downloads.add(piece)
        except grpc.RpcError as error:
            return error.code()
        self.downloads.check_whole(self.version.manifest)
        return grpc.StatusCode.OK


def test_slow_readers_delay_neither_learner_nor_others_and_get_what_they_asked_for_or_not_found(
    parameters: Parameters,
) -> None:
    with ExitStack() as stack:
        learner: ParametersClient = stack.enter_context(closing(parameters.client()))
        learner.open_epoch("run")
        learner.publish(weights(0), iteration=0)
        readers = [Reader(parameters.address, stack) for _ in range(READERS)]
        for seed in range(1, PUBLISHES + 1):
            assert learner.publish(weights(seed), iteration=seed) == seed + 1
        with closing(parameters.client()) as other:
            assert other.fetch()[0].version == PUBLISHES + 1
        outcomes = [reader.finish() for reader in readers]
        assert set(outcomes) <= {grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND}
        expected = {name: array.tobytes() for name, array in weights(0).items()}
        for reader, outcome in zip(readers, outcomes, strict=True):
            if outcome is grpc.StatusCode.OK:
                assert reader.fetched() == expected
