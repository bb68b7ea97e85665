import shutil
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from minefleet.errors import ConfigError
from minefleet.v1 import status_service_pb2
from minefleet_runtime.context import RoleContext
from minefleet_runtime.metrics import DiskCollector, StateCollector, register_process
from minefleet_runtime.probes import probing

TIMEOUT_S = 30.0
KEY = "services.replay.metrics_address"


@pytest.fixture
def address(context: RoleContext) -> Iterator[str]:
    register_process(context.registry, "replay")
    with probing("127.0.0.1:0", context.board, context.registry, KEY) as bound:
        yield bound


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_process_that_answers_is_alive(address: str) -> None:
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
        context.board.set(state, details.get(state, ""))
        assert get(address, "/readyz") == answer


def test_metrics_name_the_build_and_leave_out_creation_times(address: str) -> None:
    status, text = get(address, "/metrics?x=1")
    assert status == 200
    assert "minefleet_build_info{" in text and 'role="replay"' in text
    assert "process_resident_memory_bytes" in text


def test_metrics_say_the_state_of_the_moment_and_the_room_on_the_disk(context: RoleContext, tmp_path: Path) -> None:
    registry = context.registry
    registry.register(StateCollector(context.board))
    registry.register(DiskCollector("minefleet_run", tmp_path))
    for state, name in ((status_service_pb2.STATE_PAUSED, "paused"), (status_service_pb2.STATE_RUNNING, "running")):
        context.board.set(state)
        names = ("starting", "waiting", "running", "paused", "draining")
        shown = {each: registry.get_sample_value("minefleet_state", {"state": each}) for each in names}
        assert shown == {each: float(each == name) for each in names}
    free, size = (registry.get_sample_value(f"minefleet_run_disk_{name}_bytes") for name in ("free", "size"))
    assert free is not None and size == shutil.disk_usage(tmp_path).total
    assert 0 < free < size


def test_other_paths_are_not_found(address: str) -> None:
    assert get(address, "/secret")[0] == 404


def test_a_port_in_use_is_a_config_error_that_names_key_and_port(context: RoleContext) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(ConfigError, match=f"{KEY}: cannot listen on {address}"),
            probing(address, context.board, context.registry, KEY),
        ):
            pass


def test_connections_that_say_nothing_are_closed_and_hold_up_nobody(address: str) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as silent:
        silent.sendall(b"GET /heal")
        assert get(address, "/healthz") == (200, "alive\n")
        assert silent.recv(1) == b""
