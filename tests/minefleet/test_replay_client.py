"""The client against a server that misbehaves. What it does with the real one is in tests/minefleet_replay."""

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from minefleet.core.errors import ConflictError, ContractError, InternalError, UnavailableError
from minefleet.rpc.replay_client import ReplayClient
from minefleet.rpc.replay_types import Position
from minefleet.rpc.retrier import StoppedError
from minefleet.v1 import (
    fragment_pb2,
    replay_service_pb2,
    replay_service_pb2_grpc,
    status_service_pb2,
    status_service_pb2_grpc,
)

IDENTITY = status_service_pb2.Identity(role=status_service_pb2.ROLE_ACTOR, wire_version=1)
Part = replay_service_pb2.ReadPart


class StandIn(replay_service_pb2_grpc.ReplayServiceServicer, status_service_pb2_grpc.StatusServiceServicer):
    """Does as it is told."""

    def __init__(self) -> None:
        self.refusals: list[grpc.Status | grpc.StatusCode] = []
        self.greetings = 0
        self.calls: list[str] = []
        self.deadlines_s: dict[str, float | None] = {}
        self.reads: list[list[Part | grpc.StatusCode]] = []
        self.requests: list[Any] = []
        self.refused = threading.Event()

    def enter(self, method: str, request: Any, context: Any) -> None:
        self.calls.append(method)
        self.requests.append(request)
        self.deadlines_s[method] = context.time_remaining()
        if self.refusals:
            refusal = self.refusals.pop(0)
            self.refused.set()
            if isinstance(refusal, grpc.StatusCode):
                context.abort(refusal, "told to")
            context.abort_with_status(refusal)

    def Describe(self, request: Any, context: Any) -> status_service_pb2.DescribeResponse:  # noqa: N802
        self.greetings += 1
        self.deadlines_s["Describe"] = context.time_remaining()
        if request.caller.wire_version != 1:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "wire_version is 2 there and 1 here")
        return status_service_pb2.DescribeResponse()

    def Reserve(self, request: Any, context: Any) -> replay_service_pb2.ReserveResponse:  # noqa: N802
        self.enter("Reserve", request, context)
        return replay_service_pb2.ReserveResponse(granted=[True] * len(request.chunks))

    def Append(self, request_iterator: Any, context: Any) -> replay_service_pb2.AppendResponse:  # noqa: N802
        self.enter("Append", list(request_iterator), context)
        headers = [part for message in self.requests[-1] for part in message.parts if part.HasField("header")]
        return replay_service_pb2.AppendResponse(outcomes=[replay_service_pb2.APPEND_OUTCOME_STORED] * len(headers))

    def Lease(self, request: Any, context: Any) -> replay_service_pb2.LeaseResponse:  # noqa: N802
        self.enter("Lease", request, context)
        return replay_service_pb2.LeaseResponse()

    def Read(self, request: Any, context: Any) -> Iterator[replay_service_pb2.ReadResponse]:  # noqa: N802
        self.enter("Read", request, context)
        for part in self.reads.pop(0):
            if isinstance(part, grpc.StatusCode):
                context.abort(part, "told to")
            else:
                yield replay_service_pb2.ReadResponse(parts=[part])

    def WhyDropped(self, request: Any, context: Any) -> replay_service_pb2.WhyDroppedResponse:  # noqa: N802
        self.enter("WhyDropped", request, context)
        return replay_service_pb2.WhyDroppedResponse()

    def CountSteps(self, request: Any, context: Any) -> replay_service_pb2.CountStepsResponse:  # noqa: N802
        self.enter("CountSteps", request, context)
        return replay_service_pb2.CountStepsResponse()

    def Ack(self, request: Any, context: Any) -> replay_service_pb2.AckResponse:  # noqa: N802
        self.enter("Ack", request, context)
        return replay_service_pb2.AckResponse()

    def Release(self, request: Any, context: Any) -> replay_service_pb2.ReleaseResponse:  # noqa: N802
        self.enter("Release", request, context)
        return replay_service_pb2.ReleaseResponse()

    def ReadEpisodes(self, request: Any, context: Any) -> replay_service_pb2.ReadEpisodesResponse:  # noqa: N802
        self.enter("ReadEpisodes", request, context)
        return replay_service_pb2.ReadEpisodesResponse()


@pytest.fixture
def stand_in() -> StandIn:
    return StandIn()


@pytest.fixture
def address(stand_in: StandIn) -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(4))
    replay_service_pb2_grpc.add_ReplayServiceServicer_to_server(stand_in, server)
    status_service_pb2_grpc.add_StatusServiceServicer_to_server(stand_in, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.fixture
def client(address: str) -> Iterator[ReplayClient]:
    position = Position(run_id="r", epoch=3, version=7, resumed_version=4, first_version=6)
    with ReplayClient(address, identity=IDENTITY, position=position, patience_s=20.0) as client:
        yield client


def header(sequence: int, payload: bytes) -> fragment_pb2.FragmentHeader:
    name = fragment_pb2.FragmentName(stream="s", sequence=sequence)
    return fragment_pb2.FragmentHeader(name=name, payload_bytes=len(payload))


def parts(sequence: int, payload: bytes) -> list[Part | grpc.StatusCode]:
    middle = len(payload) // 2
    pieces = (Part(payload=payload[:middle]), Part(payload=payload[middle:]))
    return [Part(header=header(sequence, payload)), *pieces]


VERBS: dict[str, Callable[[ReplayClient], Any]] = {
    "Reserve": lambda client: client.reserve(1, [("s", 0)]),
    "Append": lambda client: client.append([(header(0, b"ab"), b"ab")]),
    "Lease": lambda client: client.lease(1, steps=1, use_version=1, wait_s=2.0),
    "Read": lambda client: list(client.read(1)),
    "Ack": lambda client: client.ack(1),
    "Release": lambda client: client.release(1),
    "ReadEpisodes": lambda client: client.read_episodes(0, 1),
}


@pytest.mark.parametrize("verb", VERBS)
def test_replay_client_gives_every_call_a_deadline_and_repeats_it_until_answered(
    stand_in: StandIn, client: ReplayClient, verb: str
) -> None:
    stand_in.reads = [[], []]
    stand_in.refusals = [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED]
    VERBS[verb](client)
    assert stand_in.calls == [verb] * 3
    assert stand_in.requests[0] == stand_in.requests[-1]
    for method in (verb, "Describe"):
        remaining_s = stand_in.deadlines_s[method]
        assert remaining_s is not None
        assert remaining_s < 1000


def test_a_lease_may_wait_longer_than_other_calls(stand_in: StandIn, client: ReplayClient) -> None:
    client.lease(1, steps=1, use_version=1, wait_s=100.0)
    assert (stand_in.deadlines_s["Lease"] or 0.0) > 100.0


@pytest.mark.parametrize("verb", ["Lease", "Read", "Ack", "Release", "ReadEpisodes"])
def test_replay_client_sends_the_learners_position_along(stand_in: StandIn, client: ReplayClient, verb: str) -> None:
    stand_in.reads = [[]]
    VERBS[verb](client)
    assert stand_in.requests[0].learner == replay_service_pb2.Learner(
        run_id="r", epoch=3, version=7, resumed_version=4, first_version=6
    )


def test_replay_client_shakes_hands_once_and_again_after_an_outage(stand_in: StandIn, client: ReplayClient) -> None:
    client.reserve(1, [])
    client.reserve(1, [])
    assert stand_in.greetings == 1
    stand_in.refusals = [grpc.StatusCode.UNAVAILABLE]
    client.reserve(1, [])
    assert stand_in.greetings == 2


def test_a_peer_that_does_not_fit_is_refused_before_any_call(stand_in: StandIn, address: str) -> None:
    identity = status_service_pb2.Identity(wire_version=2)
    with ReplayClient(address, identity=identity) as client, pytest.raises(ContractError, match="wire_version"):
        client.reserve(1, [])
    assert stand_in.calls == []


def test_a_refusal_that_repeating_cannot_help_is_raised_at_once(stand_in: StandIn, client: ReplayClient) -> None:
    stand_in.refusals = [grpc.StatusCode.ALREADY_EXISTS]
    with pytest.raises(ConflictError):
        client.append([(header(0, b"a"), b"a")])
    assert stand_in.calls == ["Append"]


def test_an_overloaded_replay_is_asked_again(stand_in: StandIn, client: ReplayClient) -> None:
    status = status_pb2.Status(code=grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], message="full")
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(nanos=1_000_000)))
    status.details.append(detail)
    stand_in.refusals = [rpc_status.to_status(status)]
    assert client.append([(header(0, b"a"), b"a")]).outcomes == ["stored"]


def test_payloads_travel_in_pieces_and_small_ones_together(stand_in: StandIn, client: ReplayClient) -> None:
    payload = bytes(5 * 2**19)
    progress = replay_service_pb2.ActorProgress(actor="a")
    small = [(header(number, b"small"), b"small") for number in (1, 2)]
    client.append([(header(0, payload), payload), *small], progress=progress)
    (messages,) = stand_in.requests
    kinds = [[part.WhichOneof("part") for part in message.parts] for message in messages]
    assert kinds == [["progress", "header", "payload"], ["payload"], ["payload", *["header", "payload"] * 2]]
    assert b"".join(part.payload for message in messages for part in message.parts) == payload + b"smallsmall"
    assert max(message.ByteSize() for message in messages) < 2**21


def test_a_read_that_breaks_off_goes_on_without_repeating_a_fragment(stand_in: StandIn, client: ReplayClient) -> None:
    missing = Part(missing=fragment_pb2.FragmentName(stream="s", sequence=9))
    first, second = parts(0, b"first!"), parts(1, b"second")
    stand_in.reads = [
        [*first, missing, *second[:2], grpc.StatusCode.UNAVAILABLE],
        [*first, missing, *second, *parts(2, b"")[:1]],
    ]
    reported: list[tuple[str, int]] = []
    read = [(one.name.sequence, payload) for one, payload in client.read(1, missing=reported.append)]
    assert read == [(0, b"first!"), (1, b"second"), (2, b"")]
    assert reported == [("s", 9)]


def test_a_fragment_that_ends_too_soon_is_a_fault_of_replay(stand_in: StandIn, client: ReplayClient) -> None:
    stand_in.reads = [parts(0, b"first!")[:2]]
    with pytest.raises(InternalError):
        list(client.read(1))


def test_replay_client_that_is_asked_to_stop_ends_its_wait(stand_in: StandIn, address: str) -> None:
    stopping = threading.Event()
    stand_in.refusals = [grpc.StatusCode.UNAVAILABLE] * 10_000
    waits: list[str | None] = []
    with ReplayClient(address, stopping=stopping, report=waits.append) as client, futures.ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.ack, 1)
        stand_in.refused.wait()
        stopping.set()
        with pytest.raises(StoppedError):
            call.result()
    assert waits == [f"waiting for replay at {address}"]


def test_replay_client_gives_up_after_its_patience(stand_in: StandIn, address: str) -> None:
    stand_in.refusals = [grpc.StatusCode.UNAVAILABLE] * 3
    with ReplayClient(address, patience_s=0.0) as client, pytest.raises(UnavailableError):
        client.ack(1)
