"""Bytes that are no calls, and callers that nobody knows, on every port: refused or cut off, and others are served."""

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import strategies as st
from tests.fuzz.fleet import GROWTH_BYTES, TROUBLE
from tests.fuzzing import EXTENTS, fuzz
from tests.parameters_process import RUN, ParametersProcess, status_of, weights_of
from tests.replay_process import ReplayProcess, append
from tests.role_process import TIMEOUT_S

from minefleet.config.security import SecurityConfig
from minefleet.rpc import certificates as certs
from minefleet.rpc.channel import MESSAGE_BYTES
from minefleet.rpc.credentials import Credentials, read_credentials

EXAMPLES = 100
CONNECTIONS = 300
BOMB_BYTES = 64 * 2**20
LARGE = (("grpc.max_send_message_length", -1),)

Security = Callable[[Path], SecurityConfig]


def nothing(directory: Path) -> SecurityConfig:
    return SecurityConfig()


def token(directory: Path) -> SecurityConfig:
    path = directory / "token"
    path.write_text("a-token-of-many-letters\n")
    return SecurityConfig(token_file=str(path))


def certificates(directory: Path) -> SecurityConfig:
    certs.init(directory / "certificates")
    return SecurityConfig(certificates=str(directory / "certificates"))


class Port:
    """A role that asks its callers for something, and how those who have it call."""

    def __init__(self, role: Any, address: str, method: str, works: Callable[[], None]) -> None:
        self.role = role
        self.address = address
        self.method = method
        self.works = works
        self.entered = 0.0

    def served(self) -> float:
        """The number of calls of its own service that have got through."""
        service, _, _ = self.method[1:].partition("/")
        return float(self.role.sample("grpc_server_handled_total", grpc_service=service, grpc_code="OK"))

    def check(self, grown_from: int) -> None:
        """Nobody else got through; it lives, has met nothing unexpected, has not grown, and works."""
        assert self.served() == self.entered
        assert self.role.rss_bytes() < grown_from + GROWTH_BYTES
        assert self.role.get("/healthz") == (200, "alive\n")
        self.work()
        log = self.role.log.read_text()
        assert not TROUBLE.search(log), log[-5000:]

    def work(self) -> None:
        """Has those work who may."""
        self.works()
        self.entered = self.served()


def replay(directory: Path, security: SecurityConfig) -> Port:
    process = ReplayProcess(directory, security=security, max_staleness=9)
    actor = read_credentials(security, "actor")

    def works() -> None:
        with process.client(credentials=actor) as client:
            assert append(process, client, "s", 0) in ("stored", "duplicate")

    return Port(process, process.server.address, "/minefleet.v1.ReplayService/Append", works)


def parameters(directory: Path, security: SecurityConfig) -> Port:
    process = ParametersProcess(directory, security=security)
    learner = read_credentials(security, "learner")

    def works() -> None:
        with process.client(credentials=learner) as client:
            client.open_epoch(RUN)
            client.publish(weights_of(1), iteration=1)

    return Port(process, process.address, "/minefleet.v1.ParametersService/Publish", works)


@pytest.fixture(scope="module", params=[nothing, token, certificates])
def security(request: pytest.FixtureRequest) -> Security:
    chosen: Security = request.param
    return chosen


@pytest.fixture(scope="module", params=[replay, parameters])
def port(
    request: pytest.FixtureRequest, security: Security, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Port]:
    directory = tmp_path_factory.mktemp("port")
    port = request.param(directory, security(directory))
    with port.role.running():
        port.work()
        yield port
        assert port.role.end() == 0


def exchange(address: str, sent: bytes) -> bytes:
    """Sends bytes and ends; what comes back until the other end closes."""
    host, _, number = address.rpartition(":")
    answer = bytearray()
    with socket.create_connection((host, int(number)), timeout=TIMEOUT_S) as connection:
        try:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            while data := connection.recv(4096):
                answer += data
        except TimeoutError:
            raise
        except OSError:
            pass
    return bytes(answer)


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
HEADERS = b"\0\0\0\x01\x05\0\0\0\x01"
HELLO = b"\x16\x03\x01\x00\xa5\x01" + bytes(160)
NOISE = {
    "HTTP/1": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a post": b"POST /minefleet.v1.ReplayService/Append HTTP/1.1\r\nContent-Length: 5\r\n\r\n\0\0\0\0\0",
    "a TLS hello": HELLO,
    "bytes": bytes(range(256)) * 64,
    "zeros": bytes(2**20),
    "nothing": b"",
    "an empty call": PREFACE + SETTINGS + HEADERS,
    "a frame of 16 MiB": PREFACE + SETTINGS + b"\xff\xff\xff\0\0\0\0\0\x01" + bytes(2**16),
    "settings without end": PREFACE + SETTINGS * 10_000,
    "resets without end": PREFACE + SETTINGS + (HEADERS + b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08") * 5_000,
    "pings without end": PREFACE + SETTINGS + (b"\0\0\x08\x06\0\0\0\0\0" + bytes(8)) * 10_000,
}


@pytest.mark.parametrize("noise", NOISE)
def test_port_sent_noise_answers_no_success_and_lives(port: Port, noise: str) -> None:
    before = port.role.rss_bytes()
    assert b"HTTP/1.1 200" not in exchange(port.address, NOISE[noise])
    port.check(before)


@EXTENTS
def test_port_sent_arbitrary_bytes_lives_and_does_not_grow(port: Port, extent: int) -> None:
    before = port.role.rss_bytes()
    starts = st.sampled_from([b"", PREFACE, PREFACE + SETTINGS, HELLO[:5], HELLO[:20]])
    drawn = st.tuples(starts, st.binary(max_size=500)).map(b"".join)
    fuzz(extent, EXAMPLES, drawn, partial(exchange, port.address))
    port.check(before)


@pytest.mark.parametrize("begun", [b"", b"PRI * HT", PREFACE + SETTINGS, HELLO[:50]], ids=["", "pri", "http2", "tls"])
def test_port_with_many_unfinished_connections_serves_others(port: Port, begun: bytes) -> None:
    host, _, number = port.address.rpartition(":")
    before = port.role.rss_bytes()
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            connection = stack.enter_context(socket.create_connection((host, int(number)), timeout=TIMEOUT_S))
            connection.sendall(begun)
        port.check(before)
        reset(connection)
    port.check(before)


def reset(connection: socket.socket) -> None:
    """Has a connection end without a farewell."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


TOO_LARGE: dict[str, tuple[bytes, dict[str, Any]]] = {
    "a large message": (bytes(MESSAGE_BYTES + 1), {}),
    "a compressed bomb": (bytes(BOMB_BYTES), {"compression": grpc.Compression.Gzip}),
    "much metadata": (b"", {"metadata": (("noise", "x" * 20_000),)}),
}


@pytest.mark.parametrize("case", TOO_LARGE)
def test_ports_refuse_messages_that_are_too_large_from_any_caller(port: Port, security: Security, case: str) -> None:
    before = port.role.rss_bytes()
    message, arguments = TOO_LARGE[case]
    with grpc.insecure_channel(port.address, options=LARGE) as channel:
        call: Any = channel.stream_unary(port.method)
        codes = {status_of(lambda: call(iter([message]), timeout=TIMEOUT_S, **arguments)) for _ in range(4)}
    assert codes <= {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE}
    if security is nothing:
        # To the handler, the call of a message that is too large is one without messages.
        while port.entered != (served := port.served()):  # Some are counted after their caller has its answer.
            port.entered = served
            time.sleep(0.2)
    port.check(before)


def test_ports_refuse_callers_of_another_protocol_or_without_credentials(
    port: Port, security: Security, tmp_path: Path
) -> None:
    before = port.role.rss_bytes()
    strangers = {"TLS": read_credentials(certificates(tmp_path), "learner")}
    if security is not nothing:
        strangers |= {"nothing": Credentials(), "a wrong token": Credentials(token="another-token-of-many")}
    for who, credentials in strangers.items():
        with credentials.channel(port.address, "replay", ()) as channel:
            call: Any = channel.stream_unary(port.method)
            code = status_of(partial(call, iter([b""]), timeout=TIMEOUT_S))
        wanted = "UNAUTHENTICATED" if security is token and who != "TLS" else "UNAVAILABLE"
        assert code.name == wanted, who
    port.check(before)


LINES = st.one_of(
    st.sampled_from(
        [b"GET /metrics HTTP/1.1", b"GET /readyz HTTP/1.0", b"HEAD / HTTP/1.1", b"GET /../run.yaml", b"GET"]
    ),
    st.binary(max_size=80),
)
HEADS = st.lists(
    st.one_of(
        st.sampled_from(
            [b"Accept: text/plain; version=", b"Accept: application/openmetrics-text;version=1.0.0;escaping="]
        ),
        st.binary(max_size=80),
    ),
    max_size=4,
)


@EXTENTS
def test_probe_port_sent_arbitrary_requests_lives_and_does_not_grow(port: Port, extent: int) -> None:
    before = port.role.rss_bytes()
    ends = st.sampled_from([b"\r\n\r\n", b"\n\n", b""])
    drawn = st.tuples(LINES, HEADS, ends).map(lambda parts: b"\r\n".join([parts[0], *parts[1]]) + parts[2])
    fuzz(extent, EXAMPLES, drawn, partial(exchange, port.role.metrics_address))
    port.check(before)
