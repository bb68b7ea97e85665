import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, Gauge, start_http_server
from tests.deploy.committed import dashboards
from tests.deploy.programs import program

from minefleet.core.errors import EXIT_CONFIG, EXIT_FAILED
from minefleet.monitoring.prometheus_grafana_config import grafana
from minefleet.monitoring.scrape_targets import scrape_targets
from minefleet.runs.run_yaml import Run

TIMEOUT_S = 60.0
MONITOR = (sys.executable, "-m", "minefleet", "monitor")


def leave_card(run: Run, name: str, role: str, metrics_address: str) -> Path:
    card = {"name": name, "role": role, "pid": 1, "address": "127.0.0.1:9", "metrics_address": metrics_address}
    path = run.directory / "roles" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(card))
    return path


def test_targets_are_the_roles_that_serve_metrics_with_their_role_as_the_job(run: Run) -> None:
    leave_card(run, "actor-1", "ROLE_ACTOR", "127.0.0.1:7")
    leave_card(run, "learner", "ROLE_LEARNER", "")
    leave_card(run, "broken", "ROLE_NOTHING", "127.0.0.1:8")
    (run.directory / "roles/garbage.json").write_text('{"name": ')
    assert scrape_targets(run.directory) == [
        {"targets": ["127.0.0.1:7"], "labels": {"job": "actor", "name": "actor-1"}}
    ]


def test_monitor_without_prometheus_says_how_to_install_it_and_writes_the_targets(run: Run) -> None:
    leave_card(run, "actor-1", "ROLE_ACTOR", "127.0.0.1:7")
    environment = os.environ | {"PATH": ""}
    done = subprocess.run([*MONITOR, str(run.directory)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == EXIT_CONFIG and "apt-get install prometheus" in done.stderr
    assert "127.0.0.1:7" in (run.directory / "targets.json").read_text()


def test_prometheus_scrapes_roles_that_are_up_and_those_that_come(run: Run) -> None:
    program("prometheus")
    registry = CollectorRegistry()
    Gauge("answer", "Nothing else.", registry=registry).set(42)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    with subprocess.Popen(
        [*MONITOR, str(run.directory), "--listen", "127.0.0.1:19095"], stdout=subprocess.PIPE
    ) as monitor:
        assert monitor.stdout is not None and b"scrapes no role: none is up" in monitor.stdout.readline()
        leave_card(run, "replay", "ROLE_REPLAY", f"127.0.0.1:{server.server_port}")
        found = until_answered("answer")
        monitor.send_signal(signal.SIGHUP)  # Of a terminal that is closed; Prometheus itself takes it for a reload.
        monitor.wait(TIMEOUT_S)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", 19095))
    server.shutdown()
    thread.join()
    server.server_close()
    assert (found["metric"]["job"], found["value"][1]) == ("replay", "42")


def test_a_grafana_would_show_the_dashboards_with_this_prometheus_as_their_source(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is installed where the tests run: only what it would be started with is looked at."""
    (tmp_path / "grafana").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = grafana(run.directory, "127.0.0.1:8", "127.0.0.1:7")
    assert found is not None and found.command[:2] == [str(tmp_path / "grafana"), "server"]
    assert (found.variables["GF_SERVER_HTTP_ADDR"], found.variables["GF_SERVER_HTTP_PORT"]) == ("127.0.0.1", "8")
    assert run.directory in Path(found.variables["GF_PATHS_DATA"]).parents
    provisioning = Path(found.variables["GF_PATHS_PROVISIONING"])
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())["datasources"]
    assert (source["uid"], source["url"]) == ("prometheus", "http://127.0.0.1:7")
    (provider,) = yaml.safe_load((provisioning / "dashboards/minefleet.yaml").read_text())["providers"]
    assert sorted(path.name for path in Path(provider["options"]["path"]).iterdir()) == sorted(dashboards())


def test_a_port_in_use_ends_monitor_with_the_last_words_of_prometheus(run: Run) -> None:
    program("prometheus")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [*MONITOR, str(run.directory), "--listen", listen]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == EXIT_FAILED
    assert "prometheus has ended with 1" in done.stderr and "address already in use" in done.stderr


def until_answered(query: str) -> Any:
    """The one series that a query finds, once it does."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:19095/api/v1/query?query={query}") as answer:
                result = json.load(answer)["data"]["result"]
        except OSError:
            result = []
        if result:
            return result[0]
        time.sleep(0.2)
    raise AssertionError("never scraped")
