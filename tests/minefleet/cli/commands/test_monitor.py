import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, start_http_server
from tests.deploy.programs import program

from minefleet.core.errors import EXIT_CONFIG
from minefleet.monitoring.scrape_targets import scrape_targets
from minefleet.runs.run import Run

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


def test_without_prometheus_monitor_says_how_to_get_it_and_leaves_the_targets(run: Run) -> None:
    leave_card(run, "actor-1", "ROLE_ACTOR", "127.0.0.1:7")
    environment = os.environ | {"PATH": ""}
    done = subprocess.run([*MONITOR, str(run.directory)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == EXIT_CONFIG and "apt-get install prometheus" in done.stderr
    assert "127.0.0.1:7" in (run.directory / "monitor/targets.json").read_text()


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
        monitor.send_signal(signal.SIGINT)
        monitor.wait(TIMEOUT_S)
    server.shutdown()
    thread.join()
    server.server_close()
    assert (found["metric"]["job"], found["value"][1]) == ("replay", "42")


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
