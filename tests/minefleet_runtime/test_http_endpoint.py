import shutil
import socket
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.role_process import wait_for

from minefleet.core.errors import ConfigError
from minefleet.v1 import status_service_pb2
from minefleet_runtime.http_endpoint import MAX_CONNECTIONS, probing
from minefleet_runtime.metrics import DiskCollector, StateCollector, register_process
from minefleet_runtime.role_context import RoleContext

TIMEOUT_S = 30.0
KEY = "services.replay.metrics_address"


@pytest.fixture
def address(context: RoleContext) -> Iterator[str]:
    register_process(context.registry, "replay")
    with probing("127.0.0.1:0", context.status, context.registry, KEY) as bound:
        yield bound


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_probe_healthz_answers_alive(address: str) -> None:
    assert get(address, "/healthz") == (200, "alive\n")


def test_a_role_is_ready_only_while_it_runs_or_is_paused(context: RoleContext, address: str) -> None:
    expected = {
        status_service_pb2.STATE_STARTING: (503, "starting\n"),
        status_service_pb2.STATE_WAITING: (503, "waiting: for replay\n"),
        status_service_pb2.STATE_RUNNING: (200, "running\n"),
        status_service_pb2.STATE_PAUSED: (200, "paused: no grant\n"),
        status_service_pb2.STATE_DRAINING: (503, "draining\n"),
    }
    details = {status_service_pb2.STATE_WAITING: "for replay", status_service_pb2.STATE_PAUSED: "no grant"}
    for state, answer in expected.items():
        context.status.set_state(state, details.get(state, ""))
        assert get(address, "/readyz") == answer


def test_metrics_name_the_build_and_leave_out_creation_times(address: str) -> None:
    status, text = get(address, "/metrics?x=1")
    assert status == 200
    assert "minefleet_build_info{" in text and 'role="replay"' in text
    assert "process_resident_memory_bytes" in text


def test_metrics_say_the_state_of_the_moment_and_the_room_on_the_disk(context: RoleContext, tmp_path: Path) -> None:
    registry = context.registry
    registry.register(StateCollector(context.status))
    registry.register(DiskCollector("minefleet_run", tmp_path))
    for state, name in ((status_service_pb2.STATE_PAUSED, "paused"), (status_service_pb2.STATE_RUNNING, "running")):
        context.status.set_state(state)
        names = ("starting", "waiting", "running", "paused", "draining")
        shown = {each: registry.get_sample_value("minefleet_state", {"state": each}) for each in names}
        assert shown == {each: float(each == name) for each in names}
    free, size = (registry.get_sample_value(f"minefleet_run_disk_{name}_bytes") for name in ("free", "size"))
    assert free is not None and size == shutil.disk_usage(tmp_path).total
    assert 0 < free < size


def test_probe_endpoint_answers_other_paths_with_404(address: str) -> None:
    assert get(address, "/secret")[0] == 404


def test_probe_endpoint_on_a_port_in_use_is_a_config_error_that_names_key_and_port(context: RoleContext) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(ConfigError, match=f"{KEY}: cannot listen on {address}"),
            probing(address, context.status, context.registry, KEY),
        ):
            pass


def test_connections_that_say_nothing_are_closed_and_hold_up_nobody(address: str) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as silent:
        silent.sendall(b"GET /heal")
        assert get(address, "/healthz") == (200, "alive\n")
        assert silent.recv(1) == b""


def exchange(address: str, request: bytes) -> bytes:
    """Sends bytes and returns what comes back until the connection is closed."""
    host, _, port = address.rpartition(":")
    answer = bytearray()
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
        try:
            connection.sendall(request)
            while data := connection.recv(4096):
                answer += data
        except ConnectionError:
            pass
    return bytes(answer)


ASKED = b"GET /metrics HTTP/1.1\r\n"
REFUSED = {
    "another method": (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"501"),
    "a strange method": (b"\xff\x00\x1b /metrics HTTP/1.1\r\n\r\n", b"501"),
    "a path upwards": (b"GET /../../etc/passwd HTTP/1.1\r\n\r\n", b"404"),
    "a path upwards after one that is there": (b"GET /metrics/../../etc/passwd HTTP/1.1\r\n\r\n", b"404"),
    "an encoded path upwards": (b"GET /%2e%2e/etc/passwd HTTP/1.1\r\n\r\n", b"404"),
    "another host's": (b"GET http://elsewhere/metrics HTTP/1.1\r\n\r\n", b"404"),
    "a path without end": (b"GET /" + b"a" * 2**20 + b" HTTP/1.1\r\n\r\n", b"414"),
    "a header without end": (ASKED + b"Noise: " + b"a" * 2**20 + b"\r\n\r\n", b"431"),
    "headers without end": (ASKED + b"".join(b"h%d: x\r\n" % number for number in range(10_000)) + b"\r\n", b"431"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_probe_endpoint_refuses_other_requests(address: str, case: str) -> None:
    request, status = REFUSED[case]
    answer = exchange(address, request)
    # Who is still sending when he is refused may find the connection reset before he reads why.
    assert answer.split()[1:2] == [status] or (not answer and len(request) > 2**16)
    assert b"process_" not in answer and b"root:" not in answer and b"Python" not in answer
    assert get(address, "/healthz") == (200, "alive\n")


@pytest.mark.parametrize("version", ["x", "1.0.0\r\n\tX: y", "1.x", "", "99999999999999999999", "1;1", "\xff"])
@pytest.mark.parametrize("kind", ["application/openmetrics-text", "text/plain"])
def test_metrics_endpoint_answers_whatever_version_is_asked_for(address: str, kind: str, version: str) -> None:
    accept = f"Accept: {kind}; version={version}\r\n\r\n".encode("latin-1")
    answer = exchange(address, ASKED + accept)
    assert answer.startswith(b"HTTP/1.0 200 ") and b"minefleet_build_info{" in answer


def test_callers_that_go_away_leave_no_line_in_the_log(
    address: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    host, _, port = address.rpartition(":")
    for _ in range(20):
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(ASKED + b"\r\n")
    assert get(address, "/healthz") == (200, "alive\n")
    wait_for(lambda: not [thread for thread in threading.enumerate() if "process_request" in thread.name])
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


def test_connections_beyond_a_number_are_closed_and_those_that_creep_end(address: str) -> None:
    host, _, port = address.rpartition(":")
    with ExitStack() as stack:
        held = []
        for _ in range(MAX_CONNECTIONS):
            held.append(stack.enter_context(socket.create_connection((host, int(port)), timeout=TIMEOUT_S)))
            held[-1].sendall(b"GET /heal")
        assert exchange(address, b"GET /healthz HTTP/1.0\r\n\r\n") == b""
        assert all(end_of_creeping(connection) for connection in held[:1])
        for connection in held:
            connection.close()
    while exchange(address, b"GET /healthz HTTP/1.0\r\n\r\n") == b"":
        pass
    assert get(address, "/healthz") == (200, "alive\n")


def end_of_creeping(connection: socket.socket) -> bool:
    """Sends a byte a second until the server closes: no single wait is long enough for it to be silent."""
    connection.settimeout(1.0)
    while True:
        try:
            connection.sendall(b"x")
            return connection.recv(1) == b""
        except TimeoutError:
            continue
        except ConnectionError:
            return True
