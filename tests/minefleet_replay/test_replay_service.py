"""The service on a real port. `make_server` is in conftest."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from minefleet.rpc.channel import connect
from minefleet.v1 import episode_pb2, fragment_pb2, replay_service_pb2, replay_service_pb2_grpc

PROGRESS = replay_service_pb2.ActorProgress(actor="a")
Spoil = Callable[[fragment_pb2.FragmentHeader], None]


@pytest.fixture
def server(make_server: Callable[..., Any]) -> Iterator[Any]:
    server = make_server(fragments_per_chunk=2)
    with server.serve():
        yield server


@pytest.fixture
def stub(server: Any) -> Iterator[replay_service_pb2_grpc.ReplayServiceStub]:
    with connect(server.address) as channel:
        yield replay_service_pb2_grpc.ReplayServiceStub(channel)


def parts(*values: Any) -> Iterator[replay_service_pb2.AppendRequest]:
    for value in values:
        match value:
            case bytes():
                part = replay_service_pb2.AppendPart(payload=value)
            case fragment_pb2.FragmentHeader():
                part = replay_service_pb2.AppendPart(header=value)
            case episode_pb2.EpisodeRecord():
                part = replay_service_pb2.AppendPart(episode=value)
            case _:
                part = value
        yield replay_service_pb2.AppendRequest(parts=[part])


def learner(epoch: int = 1, run_id: str = "run-1") -> replay_service_pb2.Learner:
    return replay_service_pb2.Learner(run_id=run_id, epoch=epoch, version=1, first_version=1)


def code_of(call: Callable[[], Any]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as refusal:
        call()
    assert isinstance(refusal.value, grpc.Call)
    return refusal.value.code()


SPOILT: dict[str, tuple[Spoil, grpc.StatusCode]] = {
    "no stream": (lambda header: header.name.ClearField("stream"), grpc.StatusCode.INVALID_ARGUMENT),
    "a long stream": (lambda header: setattr(header.name, "stream", "s" * 201), grpc.StatusCode.INVALID_ARGUMENT),
    "a huge number": (lambda header: setattr(header.name, "sequence", 2**64 - 1), grpc.StatusCode.INVALID_ARGUMENT),
    "no steps": (lambda header: setattr(header, "length", 0), grpc.StatusCode.INVALID_ARGUMENT),
    "versions that fall": (lambda header: setattr(header, "oldest_version", 9), grpc.StatusCode.INVALID_ARGUMENT),
    "another checksum": (lambda header: setattr(header, "checksum", 1), grpc.StatusCode.INVALID_ARGUMENT),
    "another size": (lambda header: setattr(header, "payload_bytes", 8), grpc.StatusCode.INVALID_ARGUMENT),
    "a huge size": (lambda header: setattr(header, "payload_bytes", 2**40), grpc.StatusCode.INVALID_ARGUMENT),
    "another raw size": (lambda header: setattr(header, "raw_bytes", 2**40), grpc.StatusCode.INVALID_ARGUMENT),
    "a negative size": (
        lambda header: setattr(header.tensors[0], "packed_bytes", -7),
        grpc.StatusCode.INVALID_ARGUMENT,
    ),
    "an unknown dtype": (lambda header: setattr(header.tensors[0], "dtype", 99), grpc.StatusCode.INVALID_ARGUMENT),
    "another schema": (lambda header: setattr(header, "schema_fingerprint", "x"), grpc.StatusCode.FAILED_PRECONDITION),
    "another run": (lambda header: setattr(header, "run_id", "run-2"), grpc.StatusCode.FAILED_PRECONDITION),
    "no run": (lambda header: header.ClearField("run_id"), grpc.StatusCode.FAILED_PRECONDITION),
}


@pytest.mark.parametrize("fault", SPOILT)
def test_a_malformed_fragment_is_refused_counted_and_leaves_nothing(server: Any, stub: Any, fault: str) -> None:
    spoil, code = SPOILT[fault]
    stub.Append(parts(server.header("first", 0), b"payload"))
    header = server.header("s", 0)
    spoil(header)
    assert code_of(lambda: stub.Append(parts(header, b"payload"))) is code
    stub.Append(parts(server.header("s", 0), b"payload"))
    assert server.count("appended_fragments_total", outcome="stored") == 2
    refused = sum(
        server.count("refused_calls_total", reason=reason) for reason in ("rejected", "contract", "runmismatch")
    )
    assert refused == 1


@pytest.mark.parametrize(
    "messages",
    [
        lambda header: (b"payload", header),
        lambda header: (header, header, b"payload"),
        lambda header: (header, b"pay"),
        lambda header: (header, b"pay", b"load"),
        lambda header: (header, b"payload and more"),
        lambda header: (header,),
        lambda header: (header, replay_service_pb2.AppendPart(), b"payload"),
        lambda header: (episode_pb2.EpisodeRecord(), header, b"payload"),
        lambda header: (episode_pb2.EpisodeRecord(stream="s", task="t" * 2**17), header, b"payload"),
        lambda header: (*[replay_service_pb2.AppendPart(progress=PROGRESS)] * 2, header, b"payload"),
    ],
)
def test_append_of_parts_in_the_wrong_order_or_number_stores_nothing(server: Any, stub: Any, messages: Any) -> None:
    assert code_of(lambda: stub.Append(parts(*messages(server.header("s", 0))))) is grpc.StatusCode.INVALID_ARGUMENT
    answer = stub.Append(parts(server.header("s", 0), b"payload"))
    assert answer.outcomes == [replay_service_pb2.APPEND_OUTCOME_STORED]


def test_fragments_before_a_refused_one_are_stored_whole(server: Any, stub: Any) -> None:
    good, bad = server.header("s", 0), server.header("s", 1)
    assert code_of(lambda: stub.Append(parts(good, b"payload", bad, b"garbled"))) is grpc.StatusCode.INVALID_ARGUMENT
    answer = stub.Append(parts(good, b"payload", bad, b"payload"))
    assert answer.outcomes == [replay_service_pb2.APPEND_OUTCOME_DUPLICATE, replay_service_pb2.APPEND_OUTCOME_STORED]


def test_append_of_a_stored_name_with_other_bytes_already_exists(server: Any, stub: Any) -> None:
    stub.Append(parts(server.header("s", 0), b"payload"))
    other = server.header("s", 0, b"other")
    assert code_of(lambda: stub.Append(parts(other, b"other"))) is grpc.StatusCode.ALREADY_EXISTS
    answer = stub.Append(parts(server.header("s", 0), b"payload"))
    assert answer.outcomes == [replay_service_pb2.APPEND_OUTCOME_DUPLICATE]


def test_steps_of_streams_are_counted_and_unknown_streams_left_out(server: Any, stub: Any) -> None:
    for stream, sequence in (("s", 0), ("s", 1), ("t", 0)):
        stub.Append(parts(server.header(stream, sequence), b"payload"))
    length = server.header("s", 0).length
    answer = stub.CountSteps(replay_service_pb2.CountStepsRequest(streams=["t", "unknown", "s"]))
    assert [(one.name, one.played, one.trained) for one in answer.streams] == [("t", length, 0), ("s", 2 * length, 0)]


@pytest.mark.parametrize("streams", [[""], ["s" * 2**17], ["s"] * 10_001])
def test_steps_of_impossible_streams_are_refused(stub: Any, streams: list[str]) -> None:
    request = replay_service_pb2.CountStepsRequest(streams=streams)
    assert code_of(lambda: stub.CountSteps(request)) is grpc.StatusCode.INVALID_ARGUMENT


def test_append_that_breaks_off_leaves_nothing(server: Any, stub: Any) -> None:
    begun, going_away = threading.Event(), threading.Event()

    def half() -> Iterator[replay_service_pb2.AppendRequest]:
        yield from parts(server.header("s", 0), b"pay")
        begun.set()
        going_away.wait()

    call = stub.Append.future(half())
    begun.wait()
    call.cancel()
    going_away.set()
    answer = stub.Append(parts(server.header("s", 0), b"payload"))
    assert answer.outcomes == [replay_service_pb2.APPEND_OUTCOME_STORED]


@pytest.mark.parametrize(
    "request_",
    [
        replay_service_pb2.LeaseRequest(learner=learner(), lease=1, steps=2**40),
        replay_service_pb2.LeaseRequest(learner=learner(), lease=1, steps=0),
        replay_service_pb2.LeaseRequest(learner=learner(), lease=1, steps=2**31),
        replay_service_pb2.LeaseRequest(learner=learner(), lease=2**64 - 1, steps=2),
        replay_service_pb2.LeaseRequest(learner=learner(), lease=1, steps=2, use_version=99),
        replay_service_pb2.LeaseRequest(learner=learner(), lease=1, steps=2, order=99),  # type: ignore[arg-type]
        replay_service_pb2.LeaseRequest(learner=learner(epoch=0), lease=1, steps=2),
    ],
)
def test_lease_with_impossible_numbers_is_refused(stub: Any, request_: replay_service_pb2.LeaseRequest) -> None:
    assert code_of(lambda: stub.Lease(request_)) is grpc.StatusCode.INVALID_ARGUMENT


def test_learner_calls_that_are_refused_have_their_status_codes(stub: Any) -> None:
    stub.ReadEpisodes(replay_service_pb2.ReadEpisodesRequest(learner=learner(epoch=2), limit=1))
    for caller, code in (
        (learner(epoch=1), grpc.StatusCode.ABORTED),
        (learner(epoch=2), grpc.StatusCode.NOT_FOUND),
        (learner(epoch=2, run_id="x"), grpc.StatusCode.FAILED_PRECONDITION),
    ):
        assert code_of(partial(stub.Ack, replay_service_pb2.AckRequest(learner=caller, lease=1))) is code
    read = replay_service_pb2.ReadRequest(learner=learner(epoch=2), lease=1)
    assert code_of(lambda: list(stub.Read(read))) is grpc.StatusCode.NOT_FOUND
    episodes = replay_service_pb2.ReadEpisodesRequest(learner=learner(epoch=2), limit=0)
    assert code_of(lambda: stub.ReadEpisodes(episodes)) is grpc.StatusCode.INVALID_ARGUMENT


def test_a_learner_that_goes_away_while_it_waits_charges_nothing(server: Any, stub: Any) -> None:
    request = replay_service_pb2.LeaseRequest(learner=learner(), lease=1, steps=2, wait=Duration(seconds=600))
    call = stub.Lease.future(request)
    call.cancel()
    for sequence in range(2):
        stub.Append(parts(server.header("s", sequence), b"payload"))
    request.lease, request.wait.seconds = 2, 0
    assert len(stub.Lease(request).chunks) == 1


def test_read_sends_payloads_in_small_pieces_and_whole(server: Any, stub: Any) -> None:
    payload = bytes(range(256)) * 10_000
    pieces = [payload[start : start + 2**20] for start in range(0, len(payload), 2**20)]
    stub.Append(parts(server.header("s", 0, payload), *pieces, server.header("s", 1), b"payload"))
    order = replay_service_pb2.LEASE_ORDER_OLDEST
    stub.Lease(replay_service_pb2.LeaseRequest(learner=learner(), lease=1, steps=2, order=order))
    answers = list(stub.Read(replay_service_pb2.ReadRequest(learner=learner(), lease=1)))
    kinds = [[part.WhichOneof("part") for part in answer.parts] for answer in answers]
    assert kinds == [["header", "payload"], ["payload"], ["payload", "header", "payload"]]
    assert b"".join(part.payload for answer in answers for part in answer.parts) == payload + b"payload"
