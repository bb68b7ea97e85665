"""Replay answers any bytes with a status that it documents, lives, and keeps its counts."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzzing import messages, mutated
from tests.minefleet_replay.recount import recount

from minefleet.core.fragment import Fragment
from minefleet.rpc.channel import connect
from minefleet.rpc.codec import encode
from minefleet.rpc.message_pieces import pieces
from minefleet.v1 import fragment_pb2, replay_service_pb2, tensor_pb2

SERVICE = replay_service_pb2.DESCRIPTOR.services_by_name["ReplayService"]
TIMEOUT_S = 30.0
STATUSES = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
STEPS = 4


class Target:
    """A server, called without serializers."""

    def __init__(self, server: Any, replay: Any, channel: Any) -> None:
        self.server = server
        self.replay = replay
        self.channel = channel

    def send(self, method: str, *requests: bytes) -> grpc.StatusCode:
        """Calls a method with these bytes; the status must be one that it may give."""
        path = f"/{SERVICE.full_name}/{method}"
        try:
            if method == "Append":
                self.channel.stream_unary(path)(iter(requests), timeout=TIMEOUT_S)
            else:
                list(self.channel.unary_stream(path)(requests[0], timeout=TIMEOUT_S))
        except grpc.RpcError as error:
            assert isinstance(error, grpc.Call)
            assert error.code() in STATUSES, error
            return error.code()
        return grpc.StatusCode.OK

    def append(self, header: fragment_pb2.FragmentHeader, payload: bytes) -> grpc.StatusCode:
        parts = [replay_service_pb2.AppendPart(header=header)]
        parts += [replay_service_pb2.AppendPart(payload=piece) for piece in pieces(payload)]
        return self.send("Append", replay_service_pb2.AppendRequest(parts=parts).SerializeToString())

    def check(self) -> None:
        """Nothing is half stored, and the next actor is served."""
        assert list(recount(self.replay.transactions.store).faults()) == []
        assert self.send("Reserve", replay_service_pb2.ReserveRequest(run_id="run-1").SerializeToString()) in STATUSES


@pytest.fixture
def target(make_server: Callable[..., Any]) -> Iterator[Target]:
    server = make_server(max_staleness=9)
    with server.serve() as replay, connect(server.address) as channel:
        replay.bind("run-1")
        yield Target(server, replay, channel)


def fragment(**changes: Any) -> Fragment:
    """A fragment of four steps."""
    flags, numbers = np.zeros(STEPS, np.bool_), np.ones(STEPS, np.float32)
    arrays: dict[str, Any] = {
        "obs": np.zeros((STEPS, 4), np.float32),
        "action": np.zeros(STEPS, np.int64),
        "reward": numbers,
        "terminated": flags,
        "truncated": flags,
        "first": flags,
        "crash": flags,
        "behaviour_logp": numbers,
        "behaviour_value": numbers,
        "next_value": numbers,
        "policy_version": np.ones(STEPS, np.uint32),
        "cut_index": np.array([STEPS - 1], np.int32),
        "cut_obs": np.zeros((1, 4), np.float32),
        "recurrent_state": {},
    }
    return Fragment(**(arrays | changes))


def packed(
    target: Target, sequence: int = 0, compression: str = "zstd", **changes: Any
) -> tuple[fragment_pb2.FragmentHeader, bytes]:
    """A header of the run's schema, and its payload."""
    header = fragment_pb2.FragmentHeader(
        run_id="run-1",
        name=fragment_pb2.FragmentName(stream="s", sequence=sequence),
        schema_fingerprint=target.server.run.schema.fingerprint,
        chunk=sequence,
        chunk_start=sequence,
        closes_chunk=True,
    )
    return encode(header, fragment(**changes), compression=compression)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["reward", "behaviour_logp", "behaviour_value", "next_value"])
def test_append_of_values_that_are_not_finite_is_refused_and_counted(target: Target, name: str, value: float) -> None:
    values = np.ones(STEPS, np.float32)
    values[2] = value
    changes: dict[str, Any] = {name: values}
    assert target.append(*packed(target, **changes)) is grpc.StatusCode.INVALID_ARGUMENT
    assert target.server.count("refused_calls_total", reason="rejected") == 1
    assert target.append(*packed(target)) is grpc.StatusCode.OK
    assert target.server.count("appended_fragments_total", outcome="stored") == 1


def test_append_finds_a_nan_that_crosses_the_border_of_two_pieces(target: Target) -> None:
    # The observations and actions end two values before the end of the first piece, in the middle of the rewards.
    observations = np.zeros((STEPS, (2**20 - 8 * STEPS - 8) // STEPS), np.uint8)
    rewards = np.ones(STEPS, np.float32)
    for place in range(STEPS):
        rewards[:] = 1
        rewards[place] = math.nan
        header, payload = packed(target, compression="none", obs=observations, reward=rewards)
        assert sum(spec.packed_bytes for spec in header.tensors[:2]) == 2**20 - 8
        assert target.append(header, payload) is grpc.StatusCode.INVALID_ARGUMENT
    assert target.append(*packed(target, compression="none", obs=observations)) is grpc.StatusCode.OK


def reshape(index: int, *shape: int) -> Callable[[fragment_pb2.FragmentHeader], None]:
    def change(header: fragment_pb2.FragmentHeader) -> None:
        header.tensors[index].ClearField("shape")
        header.tensors[index].shape.extend(shape)

    return change


LIES: dict[str, Callable[[fragment_pb2.FragmentHeader], Any]] = {
    "more steps": lambda header: setattr(header, "length", STEPS + 1),
    "a huge length": lambda header: setattr(header, "length", 2**32 - 1),
    "rewards of another shape": reshape(2, 2, 2),
    "observations of another length": reshape(0, 2, 8),
    "a negative extent": reshape(0, -4, -4),
    "a huge extent": reshape(0, 2**62, 2**62),
    "rewards of another type": lambda header: setattr(header.tensors[2], "dtype", tensor_pb2.DTYPE_INT32),
    "an unknown codec": lambda header: setattr(header.tensors[0], "codec", 99),
    "no codec": lambda header: setattr(header.tensors[0], "codec", 0),
    "a task longer than a row can count": lambda header: setattr(header, "task", "é" * 2**15),
    "packed sizes that add up and lie": lambda header: swap_packed_bytes(header, 2, 3),
}


def swap_packed_bytes(header: fragment_pb2.FragmentHeader, one: int, other: int) -> None:
    first, second = header.tensors[one], header.tensors[other]
    first.packed_bytes, second.packed_bytes = second.packed_bytes, first.packed_bytes


@pytest.mark.parametrize("lie", LIES)
def test_append_of_a_header_that_lies_is_refused_and_counted(target: Target, lie: str) -> None:
    header, payload = packed(target)
    LIES[lie](header)
    assert target.append(header, payload) is grpc.StatusCode.INVALID_ARGUMENT
    assert target.server.count("refused_calls_total", reason="rejected") == 1
    target.check()


def test_replay_refuses_undecodable_messages_and_can_still_stop(make_server: Callable[..., Any]) -> None:
    server = make_server()
    with server.serve() as replay, connect(server.address) as channel:
        target = Target(server, replay, channel)
        for requests in ((b"\xff",), (b"", b"\xff"), (b"\xff", b"")):
            assert target.send("Append", *requests) is grpc.StatusCode.INVALID_ARGUMENT
        assert target.send("Ack", b"\xff") is grpc.StatusCode.INVALID_ARGUMENT
        assert server.count("refused_calls_total", reason="rejected") == 3


@FUZZ
@given(data=st.data())
def test_append_of_any_bytes_changed_leaves_replay_consistent(target: Target, data: st.DataObject) -> None:
    header, payload = packed(target, data.draw(st.integers(0, 30)))
    parts = [replay_service_pb2.AppendPart(header=header), replay_service_pb2.AppendPart(payload=payload)]
    message = replay_service_pb2.AppendRequest(parts=parts).SerializeToString()
    target.send("Append", data.draw(mutated(message)))
    target.check()


@FUZZ
@given(data=st.data())
def test_append_of_any_header_field_changed_leaves_replay_consistent(target: Target, data: st.DataObject) -> None:
    header, payload = packed(target, data.draw(st.integers(0, 30)))
    change: Any = data.draw(messages(fragment_pb2.FragmentHeader.DESCRIPTOR))
    header.MergeFrom(change)
    header.payload_bytes = data.draw(st.sampled_from([header.payload_bytes, len(payload)]))
    target.append(header, payload)
    target.check()


@pytest.mark.parametrize(("seconds", "nanos"), [(-(2**63), 0), (2**63 - 1, 0), (0, -(2**31)), (0, 2**31 - 1), (1, -1)])
def test_lease_with_an_impossible_wait_is_answered_or_refused_as_invalid(
    target: Target, seconds: int, nanos: int
) -> None:
    header, payload = packed(target)
    assert target.append(header, payload) is grpc.StatusCode.OK
    learner = replay_service_pb2.Learner(run_id="run-1", epoch=1, version=1, first_version=1)
    request = replay_service_pb2.LeaseRequest(learner=learner, lease=1, steps=1, use_version=1)
    request.wait.seconds, request.wait.nanos = seconds, nanos
    assert target.send("Lease", request.SerializeToString()) in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT)
    target.check()
