"""The client against servers that misbehave. What it does with the real one is in tests/minefleet_parameters."""

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import closing, contextmanager
from typing import Any

import grpc
import numpy as np
import pytest

from minefleet.core.errors import ContractError, CorruptError, RejectedError, UnavailableError
from minefleet.rpc.parameters_client import ParametersClient
from minefleet.rpc.retrier import StoppedError
from minefleet.rpc.weights.manifest import describe, info_of
from minefleet.rpc.weights.missing_tensors_refusal import MissingTensorsError
from minefleet.v1 import parameters_service_pb2 as pb
from minefleet.v1 import (
    parameters_service_pb2_grpc,
    status_service_pb2,
    status_service_pb2_grpc,
    tensor_pb2,
    weights_pb2,
)

WEIGHTS = {"a": np.arange(8, dtype=np.float32), "b": np.ones(3, np.float32)}
IDENTITY = status_service_pb2.Identity(role=status_service_pb2.ROLE_ACTOR, wire_version=1)

Pieces = Callable[[list[weights_pb2.TensorPiece]], list[weights_pb2.TensorPiece]]


class StandIn(parameters_service_pb2_grpc.ParametersServiceServicer, status_service_pb2_grpc.StatusServiceServicer):
    """Holds one version and does as it is told."""

    def __init__(self) -> None:
        self.weights = dict(WEIGHTS)
        self.spoil_pieces: Pieces = lambda pieces: pieces
        self.spoil_manifest: Callable[[weights_pb2.Manifest], object] = lambda _: None
        self.refusals: list[grpc.Status | grpc.StatusCode] = []
        self.published: list[set[str]] = []
        self.greetings = 0
        self.has_a_version = True
        self.watching = threading.Event()
        self.released = threading.Event()
        self.deadlines_s: dict[str, float | None] = {}

    def Describe(  # noqa: N802
        self, request: status_service_pb2.DescribeRequest, context: Any
    ) -> status_service_pb2.DescribeResponse:
        self._enter("Describe", context)
        self.greetings += 1
        if request.caller.wire_version != 1:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "wire_version is 2 there and 1 here")
        return status_service_pb2.DescribeResponse()

    def OpenEpoch(self, request: pb.OpenEpochRequest, context: Any) -> pb.OpenEpochResponse:  # noqa: N802
        self._enter("OpenEpoch", context)
        return pb.OpenEpochResponse(epoch=request.epoch + 1, newest_version=request.version)

    def Publish(self, request_iterator: Iterator[pb.PublishRequest], context: Any) -> pb.PublishResponse:  # noqa: N802
        header = next(request_iterator).header
        self.published.append({piece.digest for request in request_iterator for piece in request.pieces})
        self._enter("Publish", context)
        return pb.PublishResponse(version=header.expected_version + 1)

    def Watch(self, request: pb.WatchRequest, context: Any) -> Iterator[pb.WatchResponse]:  # noqa: N802
        context.add_callback(self.released.set)
        self._enter("Watch", context)
        if self.has_a_version:
            yield pb.WatchResponse(newest=info_of(self._version()))
        self.watching.set()
        self.released.wait()

    def Fetch(self, request: pb.FetchRequest, context: Any) -> Iterator[pb.FetchResponse]:  # noqa: N802
        if not self.has_a_version:
            context.abort(grpc.StatusCode.NOT_FOUND, "no version has been published yet")
        yield pb.FetchResponse(version=self._version())
        if not request.ranges:
            return
        self._enter("Fetch", context)
        _, parts = describe(self.weights)
        pieces = [
            weights_pb2.TensorPiece(
                digest=each.digest, offset=each.offset, data=parts[each.digest][each.offset :].tobytes()
            )
            for each in request.ranges
        ]
        for piece in self.spoil_pieces(pieces):
            yield pb.FetchResponse(pieces=[piece])

    def ListVersions(  # noqa: N802
        self, request: pb.ListVersionsRequest, context: Any
    ) -> pb.ListVersionsResponse:
        self._enter("ListVersions", context)
        return pb.ListVersionsResponse(versions=[info_of(self._version())])

    def Pin(self, request: pb.PinRequest, context: Any) -> pb.PinResponse:  # noqa: N802
        self._enter("Pin", context)
        return pb.PinResponse(version=info_of(self._version(), pinned=request.pinned))

    def _enter(self, name: str, context: Any) -> None:
        self.deadlines_s[name] = context.time_remaining()
        if self.refusals and name != "Describe":
            refusal = self.refusals.pop(0)
            if isinstance(refusal, grpc.Status):
                context.abort_with_status(refusal)
            context.abort(refusal, "not now")

    def _version(self) -> weights_pb2.Version:
        manifest, _ = describe(self.weights)
        self.spoil_manifest(manifest)
        return weights_pb2.Version(version=1, epoch=1, run_id="run", manifest=manifest)


@contextmanager
def serving(stand_in: StandIn, address: str = "127.0.0.1:0") -> Iterator[str]:
    with futures.ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool, options=[("grpc.so_reuseport", 0)])
        parameters_service_pb2_grpc.add_ParametersServiceServicer_to_server(stand_in, server)
        status_service_pb2_grpc.add_StatusServiceServicer_to_server(stand_in, server)
        port = server.add_insecure_port(address)
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(0).wait()
            stand_in.released.set()


@pytest.fixture
def stand_in() -> StandIn:
    return StandIn()


@pytest.fixture
def address(stand_in: StandIn) -> Iterator[str]:
    with serving(stand_in) as bound:
        yield bound


@pytest.fixture
def client(address: str) -> Iterator[ParametersClient]:
    with closing(ParametersClient(address, identity=IDENTITY, watcher="me", patience_s=20.0)) as connected:
        yield connected


def test_parameters_client_gives_every_call_a_deadline(stand_in: StandIn, client: ParametersClient) -> None:
    client.open_epoch("run")
    client.publish(WEIGHTS, iteration=1)
    client.fetch()
    client.versions()
    client.pin()
    with closing(client.watch()) as watch:
        next(watch)
    asked = {"Describe", "OpenEpoch", "Publish", "Fetch", "Watch", "ListVersions", "Pin"}
    assert set(stand_in.deadlines_s) == asked
    assert all(deadline_s is not None and deadline_s < 100 for deadline_s in stand_in.deadlines_s.values())


def test_a_caller_that_does_not_fit_is_refused_at_its_first_call(address: str) -> None:
    other = status_service_pb2.Identity(wire_version=2)
    with (
        closing(ParametersClient(address, identity=other)) as client,
        pytest.raises(ContractError, match="wire_version is 2 there"),
    ):
        client.fetch()


def test_parameters_client_shakes_hands_once_and_again_after_an_outage(
    stand_in: StandIn, client: ParametersClient
) -> None:
    client.fetch()
    client.fetch()
    assert stand_in.greetings == 1
    stand_in.refusals = [grpc.StatusCode.UNAVAILABLE]
    client.versions()
    assert stand_in.greetings == 2


@pytest.mark.parametrize("status", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED])
def test_parameters_client_repeats_calls_until_they_are_answered(
    stand_in: StandIn, client: ParametersClient, status: grpc.StatusCode
) -> None:
    stand_in.refusals = [status]
    assert client.open_epoch("run", 4, 9).epoch == 5
    stand_in.refusals = [status]
    assert client.publish(WEIGHTS, iteration=1) == 10
    stand_in.refusals = [status]
    assert client.fetch()[0].version == 1


def test_a_server_that_comes_later_is_waited_for(stand_in: StandIn) -> None:
    with serving(StandIn()) as address:
        pass
    waiting, said = threading.Event(), list[str | None]()

    def report(message: str | None) -> None:
        said.append(message)
        waiting.set()

    with (
        closing(ParametersClient(address, identity=IDENTITY, report=report, patience_s=20.0)) as client,
        futures.ThreadPoolExecutor(1) as pool,
    ):
        fetched = pool.submit(client.fetch)
        waiting.wait()
        with serving(stand_in, address):
            assert fetched.result()[0].version == 1
    assert said == [f"waiting for parameters at {address}", None]


def test_a_client_that_is_asked_to_stop_stops_waiting() -> None:
    with serving(StandIn()) as address:
        pass
    stopping = threading.Event()
    with (
        closing(ParametersClient(address, stopping=stopping, report=lambda _: stopping.set())) as client,
        pytest.raises(StoppedError),
    ):
        client.fetch()


def test_a_watch_that_hears_nothing_ends_without_a_word_when_its_process_is_asked_to_stop(
    stand_in: StandIn, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    stand_in.has_a_version = False
    stopping = threading.Event()
    with closing(ParametersClient(address, stopping=stopping)) as client, futures.ThreadPoolExecutor(1) as pool:
        heard = pool.submit(next, client.watch())
        stand_in.watching.wait()
        stopping.set()
        with pytest.raises(StoppedError):
            heard.result()
        with pytest.raises(StoppedError):
            next(client.watch())
    assert caplog.messages == []


def test_a_watch_that_was_left_does_not_disturb_the_next(stand_in: StandIn, address: str) -> None:
    said = list[str | None]()
    with closing(ParametersClient(address, report=said.append, patience_s=20.0)) as client:
        assert next(client.watch()).version == 1
        stand_in.released.clear()
        with closing(client.watch()) as second:
            assert next(second).version == 1
    assert said == []


def test_a_closed_watch_lets_go_of_the_server(stand_in: StandIn, client: ParametersClient) -> None:
    with closing(client.watch()) as watch:
        assert next(watch).version == 1
        stand_in.watching.wait()
    assert stand_in.released.wait(20)


SPOILT: dict[str, Pieces] = {
    "a flipped bit": lambda p: [weights_pb2.TensorPiece(digest=p[0].digest, data=b"\1" + p[0].data[1:]), *p[1:]],
    "a truncated tensor": lambda p: [weights_pb2.TensorPiece(digest=p[0].digest, data=p[0].data[:-1]), *p[1:]],
    "a missing tensor": lambda p: p[1:],
    "a tensor twice": lambda p: [p[0], *p],
    "another tensor": lambda p: [*p, weights_pb2.TensorPiece(digest="0" * 32, data=b"x")],
}


@pytest.mark.parametrize("case", SPOILT)
def test_spoilt_weights_are_never_returned_and_sound_ones_are_fetched_afterwards(
    stand_in: StandIn, client: ParametersClient, case: str
) -> None:
    stand_in.spoil_pieces = SPOILT[case]
    with pytest.raises(CorruptError):
        client.fetch()
    stand_in.spoil_pieces = lambda pieces: pieces
    for name, array in client.fetch()[1].items():
        np.testing.assert_array_equal(array, WEIGHTS[name], strict=True)


def test_a_manifest_that_lies_about_sizes_is_rejected_before_anything_is_allocated(
    stand_in: StandIn, client: ParametersClient
) -> None:
    stand_in.spoil_manifest = lambda manifest: setattr(manifest.tensors[0], "size_bytes", 2**50)
    with pytest.raises(RejectedError, match="its shape needs 32"):
        client.fetch()


def test_a_rounded_tensor_that_cannot_be_one_is_rejected(stand_in: StandIn, client: ParametersClient) -> None:
    stand_in.spoil_manifest = lambda manifest: setattr(manifest.tensors[0], "wire_dtype", tensor_pb2.DTYPE_BFLOAT16)
    with pytest.raises(RejectedError, match="has 32 bytes, its shape needs 16"):
        client.fetch()


def test_fetched_weights_cannot_be_changed_by_accident(client: ParametersClient) -> None:
    _, weights = client.fetch()
    with pytest.raises(ValueError, match="read-only"):
        weights["a"][0] = 1


def test_tensors_that_parameters_turns_out_to_lack_are_sent(stand_in: StandIn, client: ParametersClient) -> None:
    manifest, parts = describe(WEIGHTS)
    client.open_epoch("run")
    lost = manifest.tensors[0].digest
    stand_in.refusals = [MissingTensorsError([lost]).to_status()]
    assert client.publish(WEIGHTS, iteration=1) == 1
    assert client.publish(WEIGHTS | {"b": np.zeros(3, np.float32)}, iteration=2) == 2
    assert stand_in.published[:2] == [set(), {lost}]
    assert len(stand_in.published[2] - parts.keys()) == 1


def test_a_server_that_lacks_what_it_was_sent_ends_the_publish(stand_in: StandIn, client: ParametersClient) -> None:
    manifest, _ = describe(WEIGHTS)
    client.open_epoch("run")
    refusal = MissingTensorsError([entry.digest for entry in manifest.tensors]).to_status()
    stand_in.refusals = [refusal, refusal]
    with pytest.raises(MissingTensorsError):
        client.publish(WEIGHTS, iteration=1)


def test_parameters_client_gives_up_after_its_patience() -> None:
    with serving(StandIn()) as address:
        pass
    with closing(ParametersClient(address, patience_s=0.0)) as client, pytest.raises(UnavailableError):
        client.fetch()
