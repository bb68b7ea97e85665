"""Calls that are too large, too many, from nobody, or about leases that are not open."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.replay_process import ReplayProcess, append
from tests.role_process import wait_for

from minefleet.core.errors import ConflictError, FencedError, FleetError, NotFoundError, RejectedError
from minefleet.rpc.channel import MESSAGE_BYTES
from minefleet.rpc.replay_types import Position
from minefleet.v1 import replay_service_pb2, replay_service_pb2_grpc
from minefleet_replay.service import HANDLERS, MAX_WAITS

BOMB_BYTES = 64 * 2**20
Requests = Iterator[replay_service_pb2.AppendRequest]


def one(payload: bytes) -> Requests:
    part = replay_service_pb2.AppendPart(payload=payload)
    yield replay_service_pb2.AppendRequest(parts=[part])


@pytest.mark.parametrize(
    ("payload_bytes", "arguments"),
    [
        (MESSAGE_BYTES + 1, {}),
        (BOMB_BYTES, {"compression": grpc.Compression.Gzip}),
        (1, {"metadata": [("noise", "x" * 20_000)]}),
    ],
    ids=["a large message", "a compressed bomb", "much metadata"],
)
def test_replay_refuses_messages_that_are_too_large_without_keeping_them(
    tmp_path: Path, payload_bytes: int, arguments: dict[str, Any]
) -> None:
    replay = ReplayProcess(tmp_path, max_bytes=2**26)
    with replay.running(), grpc.insecure_channel(replay.server.address) as channel:
        stub = replay_service_pb2_grpc.ReplayServiceStub(channel)
        rss_bytes = list[int]()
        for _ in range(2):
            with pytest.raises(grpc.RpcError) as refusal:
                stub.Append(one(bytes(payload_bytes)), timeout=60.0, **arguments)
            assert isinstance(refusal.value, grpc.Call)
            assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            rss_bytes.append(replay.rss_bytes())
        with replay.client() as client:
            assert append(replay, client, "s", 0) == "stored"
        assert replay.end() == 0
    assert rss_bytes[-1] < rss_bytes[0] + 2 * MESSAGE_BYTES


def test_more_leases_that_wait_than_there_are_handlers_keep_no_other_call_waiting(tmp_path: Path) -> None:
    replay = ReplayProcess(tmp_path)
    with replay.running(), grpc.insecure_channel(replay.server.address) as channel, replay.client() as client:
        append(replay, client, "s", 0)
        client.lease(1, steps=1, use_version=1, wait_s=0.0)
        stub = replay_service_pb2_grpc.ReplayServiceStub(channel)
        learner = replay_service_pb2.Learner(run_id=client.position.run_id, epoch=1, version=1, first_version=1)
        requests = [
            replay_service_pb2.LeaseRequest(
                learner=learner, lease=2 + number, steps=1, use_version=1, wait=Duration(seconds=300)
            )
            for number in range(2 * HANDLERS)
        ]
        waiting = [stub.Lease.future(request, timeout=300.0) for request in requests]
        wait_for(lambda: sum(call.done() for call in waiting) == len(waiting) - MAX_WAITS)
        refused = [call for call in waiting if call.done()]
        assert {call.code() for call in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert client.reserve(1, [("t", 0)]).granted
        assert append(replay, client, "s", 0) == "duplicate"
        assert append(replay, client, "s", 1) == "stored"
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60.0)
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        for call in waiting:
            call.cancel()
        assert replay.end() == 0


@pytest.fixture
def server(make_server: Callable[..., Any]) -> Iterator[Any]:
    server = make_server(max_staleness=9, max_reuse=2)
    with server.serve() as replay:
        server.replay = replay
        yield server


def position(epoch: int, run_id: str = "run-1") -> Position:
    return Position(run_id=run_id, epoch=epoch, version=epoch, resumed_version=epoch - 1, first_version=epoch)


def test_lease_call_that_is_refused_changes_no_count(server: Any) -> None:
    with server.client(position=position(2)) as client, server.client(position=position(1)) as older:
        for sequence in range(4):
            client.append([(server.header("s", sequence), b"payload")])
        for number in range(1, 4):
            client.lease(number, steps=1, use_version=2, wait_s=0.0)
        client.ack(1)
        client.release(2)
        before = server.replay.stats()
        refused: list[tuple[Callable[[], Any], type[FleetError]]] = [
            (lambda: client.ack(99), NotFoundError),
            (lambda: client.release(99), NotFoundError),
            (lambda: client.ack(2), NotFoundError),
            (lambda: client.release(1), NotFoundError),
            (lambda: list(client.read(1)), NotFoundError),
            (lambda: client.lease(1, steps=1, use_version=2, wait_s=0.0), RejectedError),
            (lambda: older.ack(3), FencedError),
            (lambda: older.release(3), FencedError),
            (lambda: list(older.read(3)), FencedError),
        ]
        for call, error in refused:
            with pytest.raises(error):
                call()
        client.ack(1)
        client.release(2)
        after = server.replay.stats()
    timely = {"unsynced_writes", "unsynced_seconds", "oldest_lease_seconds"}
    assert {name: after[name] for name in after.keys() - timely} == {
        name: before[name] for name in before.keys() - timely
    }
    counts = {
        reason: server.count("refused_calls_total", reason=reason) for reason in ("notfound", "rejected", "fenced")
    }
    assert counts == {"notfound": 5, "rejected": 1, "fenced": 3}


def test_a_name_is_known_whatever_order_it_comes_in_and_means_one_thing(server: Any) -> None:
    with server.client() as client:
        for sequence in (5, 3, 4):
            assert client.append([(server.header("s", sequence), b"payload")]).outcomes == ["stored"]
        for sequence in (3, 5):
            assert client.append([(server.header("s", sequence), b"payload")]).outcomes == ["duplicate"]
        with pytest.raises(ConflictError):
            client.append([(server.header("s", 3, b"other"), b"other")])
    assert server.replay.stats()["appended_fragments"] == 3
    assert server.count("refused_calls_total", reason="conflict") == 1


CONFIGURATIONS = {
    "max_staleness: 0": ("max_staleness: -1", "rollout_config.replay_buffer_config.max_staleness"),
    "max_reuse: 1": ("max_reuse: 0", "rollout_config.replay_buffer_config.max_reuse"),
    "max_bytes: 67108864": ("max_bytes: many", "rollout_config.replay_buffer_config.max_bytes"),
    "max_chunks: 50": ("max_chunk: 50", "max_chunks"),
}


@pytest.mark.parametrize("good", CONFIGURATIONS)
def test_an_impossible_configuration_ends_with_exit_code_2_and_names_the_key_before_a_port_opens(
    tmp_path: Path, good: str
) -> None:
    bad, key = CONFIGURATIONS[good]
    replay = ReplayProcess(tmp_path, max_staleness=0, max_reuse=1, max_bytes=2**26)
    path = tmp_path / "run.yaml"
    text = path.read_text()
    assert good in text
    path.write_text(text.replace(good, bad))
    code, log = replay.refusal()
    assert code == 2
    assert key in log and "Traceback" not in log
    assert not replay.store.exists()
