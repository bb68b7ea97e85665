import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import grpc
import pytest
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import generate_latest
from tests.role_process import free_address

from minefleet.core.errors import (
    ConfigError,
    ContractError,
    FencedError,
    FleetError,
    InternalError,
    OverloadedError,
    RejectedError,
    RunMismatchError,
    UnavailableError,
)
from minefleet.rpc.channel import connect
from minefleet.rpc.handshake import shake_hands
from minefleet.rpc.rpc_errors import translated
from minefleet.v1 import status_service_pb2
from minefleet_runtime.grpc_server.interceptors import MAX_PROBES
from minefleet_runtime.grpc_server.serve import serve, serve_aio, serving
from minefleet_runtime.role_context import RoleContext

SERVICE = "test.Echo"
TIMEOUT_S = 30.0
GARBLED = b"garbled"
Answer = Callable[[bytes], bytes]
Serve = Callable[[RoleContext, str, Answer], None]


def serve_sync_echo(context: RoleContext, address: str, answer: Answer) -> None:
    serve(context, address, echo(answer))


def serve_aio_echo(context: RoleContext, address: str, answer: Answer) -> None:
    asyncio.run(serve_aio(context, address, aio_echo(answer)))


BOTH = pytest.mark.parametrize("serve_echo", [serve_sync_echo, serve_aio_echo])


def echo(answer: Answer) -> Callable[[grpc.Server], None]:
    """Adds a service whose methods say what `answer` says; streams say it twice, the second time to b"second"."""

    def stream(request: bytes, _: grpc.ServicerContext) -> Iterator[bytes]:
        yield answer(request)
        yield answer(b"second")

    def unary(request: bytes, _: grpc.ServicerContext) -> bytes:
        return answer(request)

    def upload(requests: Iterator[bytes], _: grpc.ServicerContext) -> bytes:
        return answer(b"".join(requests))

    def both(requests: Iterator[bytes], _: grpc.ServicerContext) -> Iterator[bytes]:
        yield from map(answer, requests)

    return lambda server: _add(server, unary, stream, upload, both)


def aio_echo(answer: Answer) -> Callable[[grpc.aio.Server], None]:
    async def stream(request: bytes, _: object) -> AsyncIterator[bytes]:
        yield answer(request)
        yield answer(b"second")

    async def unary(request: bytes, _: object) -> bytes:
        return await asyncio.to_thread(answer, request)

    async def upload(requests: AsyncIterator[bytes], _: object) -> bytes:
        return answer(b"".join([piece async for piece in requests]))

    async def both(requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
        async for piece in requests:
            yield answer(piece)

    return lambda server: _add(server, unary, stream, upload, both)


def _add(server: Any, unary: Any, stream: Any, upload: Any, both: Any) -> None:
    handlers: dict[str, Any] = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary, parse),
        "Stream": grpc.unary_stream_rpc_method_handler(stream, parse),
        "Upload": grpc.stream_unary_rpc_method_handler(upload, parse),
        "Both": grpc.stream_stream_rpc_method_handler(both, parse),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def parse(data: bytes) -> bytes:
    """Takes everything for a message but GARBLED."""
    if data == GARBLED:
        raise DecodeError
    return data


class Caller:
    """Calls the echo service."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel: Any = channel

    def unary(self, request: bytes = b"") -> Any:
        with translated():
            return self.channel.unary_unary(f"/{SERVICE}/Unary")(request, timeout=TIMEOUT_S, wait_for_ready=True)

    def stream(self, request: bytes = b"") -> Iterator[bytes]:
        with translated():
            yield from self.channel.unary_stream(f"/{SERVICE}/Stream")(request, timeout=TIMEOUT_S, wait_for_ready=True)

    def upload(self, *requests: bytes) -> Any:
        with translated():
            return self.channel.stream_unary(f"/{SERVICE}/Upload")(
                iter(requests), timeout=TIMEOUT_S, wait_for_ready=True
            )

    def both(self, *requests: bytes) -> Iterator[bytes]:
        with translated():
            yield from self.channel.stream_stream(f"/{SERVICE}/Both")(
                iter(requests), timeout=TIMEOUT_S, wait_for_ready=True
            )

    def health(self) -> Any:
        stub = health_pb2_grpc.HealthStub(self.channel)
        return stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S, wait_for_ready=True).status


@contextmanager
def serving_echo(serve_echo: Serve, context: RoleContext, answer: Answer) -> Iterator[Caller]:
    """Serves in a thread, as a role does, and drains at the end."""
    address = free_address()
    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve_echo, context, address, answer)
        with connect(address) as channel:
            caller = Caller(channel)
            try:
                caller.health()
                yield caller
            finally:
                context.stopping.set()
                served.result(TIMEOUT_S)


def raising(error: Exception) -> Answer:
    def answer(_: bytes) -> bytes:
        raise error

    return answer


@BOTH
def test_server_answers_every_kind_of_call(serve_echo: Serve, context: RoleContext) -> None:
    with serving_echo(serve_echo, context, bytes.upper) as caller:
        assert caller.unary(b"one") == b"ONE"
        assert list(caller.stream(b"two")) == [b"TWO", b"SECOND"]
        assert caller.upload(b"th", b"ree") == b"THREE"
        assert list(caller.both(b"fo", b"ur")) == [b"FO", b"UR"]


@BOTH
def test_a_call_in_flight_is_finished_after_the_role_was_asked_to_stop(serve_echo: Serve, context: RoleContext) -> None:
    entered, leave = threading.Event(), threading.Event()

    def answer(request: bytes) -> bytes:
        entered.set()
        assert leave.wait(TIMEOUT_S)
        return request

    with ThreadPoolExecutor(1) as pool, serving_echo(serve_echo, context, answer) as caller:
        in_flight: Future[bytes] = pool.submit(caller.unary, b"late")
        assert entered.wait(TIMEOUT_S)
        context.stopping.set()
        with pytest.raises(UnavailableError):
            call_until_refused(caller)
        assert context.status.snapshot().state == status_service_pb2.STATE_DRAINING
        leave.set()
        assert in_flight.result(TIMEOUT_S) == b"late"


def call_until_refused(caller: Caller) -> None:
    """Asks for health on fresh connections until the server, which is about to drain, takes no more calls."""
    while True:
        with translated():
            stub = health_pb2_grpc.HealthStub(caller.channel)
            stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)


@BOTH
@pytest.mark.parametrize(
    ("raised", "received"),
    [
        (FencedError("epoch 3 has taken over"), FencedError),
        (RunMismatchError("holds run a, asked for b"), ContractError),
        (UnavailableError("draining"), UnavailableError),
    ],
)
def test_a_servicers_error_reaches_the_caller_with_its_words(
    serve_echo: Serve, context: RoleContext, raised: FleetError, received: type[FleetError]
) -> None:
    with serving_echo(serve_echo, context, raising(raised)) as caller:
        for call in (caller.unary, caller.upload, lambda: list(caller.stream())):
            with pytest.raises(received, match=str(raised)):
                call()


@BOTH
def test_an_overloaded_server_says_when_to_try_again(serve_echo: Serve, context: RoleContext) -> None:
    with serving_echo(serve_echo, context, raising(OverloadedError("full", 0.25))) as caller:
        with pytest.raises(OverloadedError, match="full") as caught:
            caller.unary()
        assert caught.value.retry_after_s == 0.25


KINDS: dict[str, Callable[[Caller], object]] = {
    "Unary": lambda caller: caller.unary(),
    "Stream": lambda caller: list(caller.stream()),
    "Upload": lambda caller: caller.upload(b""),
    "Both": lambda caller: list(caller.both(b"")),
}


@BOTH
@pytest.mark.parametrize("kind", KINDS)
def test_a_bug_reaches_the_caller_only_as_an_id_that_the_log_explains(
    serve_echo: Serve, context: RoleContext, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    with (
        serving_echo(serve_echo, context, raising(KeyError("secret"))) as caller,
        pytest.raises(InternalError, match=r"^internal error [0-9a-f]{8}; the server's log has the details$") as caught,
    ):
        KINDS[kind](caller)
    assert isinstance(caught.value.__cause__, grpc.Call)
    assert "secret" not in str(caught.value.__cause__.trailing_metadata())
    error_id = str(caught.value).split()[2].rstrip(";")
    assert [error_id in record.getMessage() and bool(record.exc_info) for record in caplog.records] == [True]


@BOTH
def test_server_hides_a_bug_after_the_first_answer_of_a_stream(serve_echo: Serve, context: RoleContext) -> None:
    def answer(request: bytes) -> bytes:
        if request == b"second":
            raise KeyError("secret")
        return request

    with serving_echo(serve_echo, context, answer) as caller:
        stream = caller.stream(b"first")
        assert next(stream) == b"first"
        with pytest.raises(InternalError, match=r"^internal error [0-9a-f]{8};"):
            next(stream)


@BOTH
def test_every_call_is_counted_and_timed_by_method_and_code(serve_echo: Serve, context: RoleContext) -> None:
    def answer(request: bytes) -> bytes:
        if request == b"second":
            raise FencedError("too late")
        return request

    with serving_echo(serve_echo, context, answer) as caller:
        caller.unary(b"fine")
        with pytest.raises(FencedError):
            list(caller.stream(b"first"))
    assert counted(context, "grpc_server_started_total", "Unary", kind="unary") == 1
    assert counted(context, "grpc_server_handled_total", "Unary", kind="unary", grpc_code="OK") == 1
    assert counted(context, "grpc_server_handled_total", "Stream", kind="server_stream", grpc_code="ABORTED") == 1
    assert counted(context, "grpc_server_handling_seconds_count", "Stream", kind="server_stream") == 1


def counted(context: RoleContext, name: str, method: str, *, kind: str, **labels: str) -> float | None:
    labels |= {"grpc_type": kind, "grpc_service": SERVICE, "grpc_method": method}
    return context.registry.get_sample_value(name, labels)


def test_unknown_methods_leave_no_label(context: RoleContext) -> None:
    with serving(context, "127.0.0.1:0") as address, connect(address) as channel, pytest.raises(grpc.RpcError):
        cast(Any, channel).unary_unary("/no.Such/Method")(b"", timeout=TIMEOUT_S)
    assert b"no.Such" not in generate_latest(context.registry)


@BOTH
def test_server_refuses_bytes_that_are_no_message_and_lives_and_can_stop(
    serve_echo: Serve, context: RoleContext
) -> None:
    with serving_echo(serve_echo, context, bytes.upper) as caller:
        calls: list[Callable[[], Any]] = [
            lambda: caller.unary(GARBLED),
            lambda: list(caller.stream(GARBLED)),
            lambda: caller.upload(GARBLED),
            lambda: caller.upload(b"first", GARBLED, b"last"),
        ]
        for call in calls:
            with pytest.raises(RejectedError, match="no message"):
                call()
        assert caller.upload(b"th", b"ree") == b"THREE"
    kinds = {"Unary": "unary", "Stream": "server_stream", "Upload": "client_stream"}
    refused = [
        counted(context, "grpc_server_handled_total", method, kind=kind, grpc_code="INVALID_ARGUMENT")
        for method, kind in kinds.items()
    ]
    assert refused == [1, 1, 2]


@BOTH
@pytest.mark.parametrize("path", [f"/{SERVICE}/Unary", f"/{SERVICE}/Stream", "/grpc.health.v1.Health/Check"])
def test_a_call_without_the_request_that_it_needs_is_refused(
    serve_echo: Serve, context: RoleContext, path: str
) -> None:
    refusals = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED}
    with serving_echo(serve_echo, context, bytes.upper) as caller:
        call = caller.channel.stream_stream(path)(iter([]), timeout=TIMEOUT_S)
        assert code_of_first(call) in refusals
        assert caller.unary(b"one") == b"ONE"


@BOTH
def test_health_watch_follows_the_life_of_the_server(serve_echo: Serve, context: RoleContext) -> None:
    answers: list[int] = []
    with serving_echo(serve_echo, context, bytes.upper) as caller:
        stub = health_pb2_grpc.HealthStub(caller.channel)
        watched = stub.Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        answers.append(next(watched).status)
        context.stopping.set()
        answers.append(next(watched).status)
        watched.cancel()
    assert answers == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]


@BOTH
def test_watches_of_health_are_few_and_keep_nobody_waiting(serve_echo: Serve, context: RoleContext) -> None:
    with serving_echo(serve_echo, context, bytes.upper) as caller:
        stub = health_pb2_grpc.HealthStub(caller.channel)
        watches = [stub.Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S) for _ in range(40)]
        codes = [code_of_first(watch) for watch in watches]
        assert codes.count(grpc.StatusCode.OK) == MAX_PROBES
        assert codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == 40 - MAX_PROBES
        assert caller.unary(b"one") == b"ONE"
        assert caller.health() == health_pb2.HealthCheckResponse.SERVING
        for watch in watches:
            watch.cancel()


def code_of_first(watch: Any) -> grpc.StatusCode:
    """OK for a watch that has begun; how it ended for one that has not."""
    try:
        next(watch)
    except grpc.RpcError as error:
        assert isinstance(error, grpc.Call)
        return error.code()
    return grpc.StatusCode.OK


@BOTH
def test_probes_that_never_send_their_request_keep_nobody_waiting(serve_echo: Serve, context: RoleContext) -> None:
    over = threading.Event()

    def never() -> Iterator[bytes]:
        over.wait()
        yield b""

    with serving_echo(serve_echo, context, bytes.upper) as caller:
        check = caller.channel.stream_unary("/grpc.health.v1.Health/Check")
        calls = [check.future(never(), timeout=TIMEOUT_S) for _ in range(300)]
        ends = [call.code() for call in calls[MAX_PROBES:]]
        assert caller.unary(b"one") == b"ONE"
        for call in calls:
            call.cancel()
        over.set()
    assert set(ends) == {grpc.StatusCode.RESOURCE_EXHAUSTED}


@BOTH
def test_health_is_the_whole_servers_and_no_other_name_is_kept(serve_echo: Serve, context: RoleContext) -> None:
    with serving_echo(serve_echo, context, bytes.upper) as caller:
        stub = health_pb2_grpc.HealthStub(caller.channel)
        request = health_pb2.HealthCheckRequest(service="another")
        assert code_of_first(stub.Watch(request, timeout=TIMEOUT_S)) is grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
            stub.Check(request, timeout=TIMEOUT_S)
        listed = stub.List(health_pb2.HealthListRequest(), timeout=TIMEOUT_S).statuses
        assert {name: answer.status for name, answer in listed.items()} == {"": health_pb2.HealthCheckResponse.SERVING}


@BOTH
def test_server_on_a_port_in_use_is_a_config_error_that_names_key_and_port(
    serve_echo: Serve, context: RoleContext
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"services.replay.address: cannot listen on {address}"):
            serve_echo(context, address, bytes.upper)


@BOTH
def test_a_port_that_a_predecessor_still_holds_is_waited_for(serve_echo: Serve, context: RoleContext) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{taken.getsockname()[1]}"
    threading.Timer(0.5, taken.close).start()
    context.stopping.set()
    serve_echo(context, address, bytes.upper)
    assert context.status.snapshot().state == status_service_pb2.STATE_DRAINING


def test_two_servers_never_share_a_port(context: RoleContext) -> None:
    other = RoleContext(run=context.run, role=status_service_pb2.ROLE_LEARNER, name="learner")
    with serving(context, "127.0.0.1:0") as address, pytest.raises(ConfigError, match=address), serving(other, address):
        pass


@BOTH
def test_a_caller_with_another_configuration_is_refused_with_the_key_and_both_values(
    serve_echo: Serve, context: RoleContext
) -> None:
    learner = context.run.identity(status_service_pb2.ROLE_LEARNER)
    with serving_echo(serve_echo, context, bytes.upper) as caller:
        assert shake_hands(caller.channel, learner).identity.role == status_service_pb2.ROLE_REPLAY
        learner.contract["train_config.discount"] = "0.9"
        with pytest.raises(ContractError, match=r"train_config\.discount is 0\.9 there and 0\.99 here"):
            shake_hands(caller.channel, learner)


def test_handshake_of_another_wire_version_is_refused(context: RoleContext) -> None:
    actor = context.run.identity(status_service_pb2.ROLE_ACTOR)
    actor.wire_version = 99
    with (
        serving(context, "127.0.0.1:0") as address,
        connect(address) as channel,
        pytest.raises(ContractError, match="wire_version is 99 there and 6 here"),
    ):
        shake_hands(channel, actor)


@pytest.mark.parametrize("value", ["x" * 20_000, "\N{GRINNING FACE}" * 20_000])
def test_a_refusal_that_quotes_much_still_reaches_the_caller(context: RoleContext, value: str) -> None:
    actor = context.run.identity(status_service_pb2.ROLE_ACTOR)
    actor.contract["train_config.discount"] = value
    with (
        serving(context, "127.0.0.1:0") as address,
        connect(address) as channel,
        pytest.raises(ContractError, match=r"train_config\.discount is .* \.\.\.$"),
    ):
        shake_hands(channel, actor)


def test_a_caller_of_an_unknown_role_is_refused_like_any_other(context: RoleContext) -> None:
    stranger = status_service_pb2.Identity(wire_version=99, instance="there")
    stranger.MergeFromString(b"\x08\x4d")
    with (
        serving(context, "127.0.0.1:0") as address,
        connect(address) as channel,
        pytest.raises(ContractError, match="unknown there does not fit replay"),
    ):
        shake_hands(channel, stranger)


def test_describe_answers_the_status_of_the_role(context: RoleContext) -> None:
    context.status.set_run("run-7")
    context.status.set_state(status_service_pb2.STATE_PAUSED, "no grant")
    context.status.set_stats({"env_steps": 12.0})
    with serving(context, "127.0.0.1:0") as address, connect(address) as channel:
        answer = shake_hands(channel, context.run.identity(status_service_pb2.ROLE_LEARNER))
    assert (answer.run_id, answer.state, answer.detail) == ("run-7", status_service_pb2.STATE_PAUSED, "no grant")
    assert answer.stats["env_steps"] == 12.0


def test_a_serving_role_can_be_found_below_the_run_directory(context: RoleContext) -> None:
    with serving(context, "127.0.0.1:0") as address:
        card = json.loads((context.run.directory / "roles" / "replay.json").read_text())
        assert (card["name"], card["role"], card["address"]) == ("replay", "ROLE_REPLAY", address)
