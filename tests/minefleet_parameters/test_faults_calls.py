"""Calls that are too large, too many, or not even calls."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import xxhash
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.parameters_process import RUN, ParametersProcess, header_of, messages_of, pieces_of, status_of, weights_of
from tests.role_process import TIMEOUT_S, wait_for

from minefleet.rpc.channel import MESSAGE_BYTES, connect
from minefleet.rpc.weights.manifest import MAX_TENSORS, architecture_fingerprint
from minefleet.v1 import parameters_service_pb2 as pb
from minefleet.v1 import parameters_service_pb2_grpc, tensor_pb2, weights_pb2
from minefleet_parameters.service import MAX_PUBLISHES

BOMB_BYTES = 100 * 2**20
NO_BYTES = xxhash.xxh3_128_hexdigest(b"")


@pytest.fixture
def parameters(tmp_path: Path) -> Iterator[ParametersProcess]:
    """A server with one version."""
    parameters = ParametersProcess(tmp_path)
    with parameters.running():
        with parameters.client() as learner:
            learner.open_epoch(RUN)
            learner.publish(weights_of(1), iteration=1)
        yield parameters


def assert_serves(parameters: ParametersProcess) -> None:
    """The old version is served, nothing else is there, a learner can publish, and it stops when asked."""
    wait_for(lambda: not parameters.leftovers())
    with parameters.client() as client:
        info, weights = client.fetch()
        assert info.version == 1
        assert all((weights[name] == array).all() for name, array in weights_of(1).items())
        client.open_epoch(RUN)
        assert client.publish(weights_of(2), iteration=2) == 2
    assert parameters.end() == 0


@pytest.mark.parametrize(
    ("data_bytes", "arguments"),
    [
        (MESSAGE_BYTES + 1, {}),
        (BOMB_BYTES, {"compression": grpc.Compression.Gzip}),
        (1, {"metadata": [("noise", "x" * 20_000)]}),
    ],
    ids=["a large message", "a compressed bomb", "much metadata"],
)
def test_parameters_refuse_messages_that_are_too_large_without_keeping_them(
    parameters: ParametersProcess, data_bytes: int, arguments: dict[str, Any]
) -> None:
    header = header_of(weights_of(2), expected=1)
    piece = weights_pb2.TensorPiece(digest=header.manifest.tensors[0].digest, data=bytes(data_bytes))
    rss_bytes = list[int]()
    with grpc.insecure_channel(parameters.address, options=[("grpc.max_send_message_length", -1)]) as channel:
        stub = parameters_service_pb2_grpc.ParametersServiceStub(channel)
        for _ in range(2):
            sent = iter(messages_of(header, [piece]))
            code = status_of(partial(stub.Publish, sent, timeout=TIMEOUT_S, **arguments))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            rss_bytes.append(parameters.rss_bytes())
    assert rss_bytes[-1] < rss_bytes[0] + 2 * MESSAGE_BYTES
    assert_serves(parameters)


def manifest_of(count: int) -> weights_pb2.Manifest:
    """So many tensors without bytes."""
    manifest = weights_pb2.Manifest()
    for number in range(count):
        manifest.tensors.add(name=f"t{number}", dtype=tensor_pb2.DTYPE_FLOAT32, shape=[0], digest=NO_BYTES)
    manifest.architecture_fingerprint = architecture_fingerprint((t.name, "float32", t.shape) for t in manifest.tensors)
    return manifest


@pytest.mark.parametrize(
    ("tensors", "code"),
    [(MAX_TENSORS + 1, grpc.StatusCode.INVALID_ARGUMENT), (10**6, grpc.StatusCode.RESOURCE_EXHAUSTED)],
    ids=["more than a manifest has", "a million"],
)
def test_publish_of_too_many_tensors_is_refused(
    parameters: ParametersProcess, tensors: int, code: grpc.StatusCode
) -> None:
    header = pb.PublishHeader(run_id=RUN, epoch=1, expected_version=1, manifest=manifest_of(tensors))
    with grpc.insecure_channel(parameters.address, options=[("grpc.max_send_message_length", -1)]) as channel:
        stub = parameters_service_pb2_grpc.ParametersServiceStub(channel)
        sent = iter([pb.PublishRequest(header=header)])
        assert status_of(lambda: stub.Publish(sent, timeout=TIMEOUT_S)) is code
    assert_serves(parameters)


def test_publish_of_the_most_tensors_allowed_holds_up_no_other_call(tmp_path: Path) -> None:
    header = pb.PublishHeader(run_id=RUN, epoch=1, manifest=manifest_of(MAX_TENSORS))
    parameters = ParametersProcess(tmp_path)
    with parameters.running(), parameters.stub() as stub:
        with parameters.client() as learner:
            learner.open_epoch(RUN)
        published, answers = while_others_ask(
            parameters, lambda: stub.Publish(iter([pb.PublishRequest(header=header)]), timeout=TIMEOUT_S)
        )
        assert published is grpc.StatusCode.OK and answers > 5
        assert status_of(lambda: next(stub.Watch(pb.WatchRequest(), timeout=TIMEOUT_S))) is grpc.StatusCode.OK


def while_others_ask(parameters: ParametersProcess, call: Callable[[], Any]) -> tuple[grpc.StatusCode, int]:
    """The end of a call of seconds, and the number of health answers meanwhile.

    Were the event loop held up, that would be once or twice.
    """
    answers = 0
    with connect(parameters.address) as channel, ThreadPoolExecutor(1) as pool:
        health = health_pb2_grpc.HealthStub(channel)
        calling = pool.submit(status_of, call)
        while not calling.done():
            health.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
            answers += 1
        return calling.result(), answers


def test_a_peer_that_opens_publishes_without_end_is_refused_and_costs_no_memory(parameters: ParametersProcess) -> None:
    header, over = header_of(weights_of(2), expected=1), threading.Event()

    def half() -> Iterator[pb.PublishRequest]:
        yield pb.PublishRequest(header=header)
        over.wait()

    with parameters.stub() as stub:
        first = [stub.Publish.future(half(), timeout=TIMEOUT_S) for _ in range(MAX_PUBLISHES)]
        wait_for(lambda: parameters.sample("grpc_server_started_total", grpc_method="Publish") == 1 + MAX_PUBLISHES)
        before = parameters.rss_bytes()
        more = [stub.Publish.future(half(), timeout=TIMEOUT_S) for _ in range(300)]
        codes = {call.code() for call in more}
        after = parameters.rss_bytes()
        for call in first:
            call.cancel()
        over.set()
    assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert after < before + 2**25
    assert_serves(parameters)


def test_deadlines_that_pass_in_the_middle_of_publishes_leave_nothing(parameters: ParametersProcess) -> None:
    over = threading.Event()

    def half() -> Iterator[pb.PublishRequest]:
        yield from messages_of(header_of(weights_of(2), expected=1), pieces_of(weights_of(2)))[:3]
        over.wait()

    with parameters.stub() as stub:
        calls = [stub.Publish.future(half(), timeout=0.3) for _ in range(4)]
        codes = {call.code() for call in calls}
        over.set()
    assert codes == {grpc.StatusCode.DEADLINE_EXCEEDED}
    assert_serves(parameters)


def test_fetch_of_too_many_ranges_is_refused(parameters: ParametersProcess) -> None:
    digest = header_of(weights_of(1), expected=0).manifest.tensors[0].digest
    ranges = [pb.TensorRange(digest=digest, offset=offset % 5) for offset in range(300_000)]
    with parameters.stub() as stub:
        request = pb.FetchRequest(ranges=ranges)
        assert status_of(lambda: list(stub.Fetch(request, timeout=TIMEOUT_S))) is grpc.StatusCode.INVALID_ARGUMENT
    assert_serves(parameters)


NOISE = [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x00\xa5\x01" + bytes(160), bytes(range(256)) * 64]


def place_of(parameters: ParametersProcess) -> tuple[str, int]:
    host, _, port = parameters.address.rpartition(":")
    return host, int(port)
