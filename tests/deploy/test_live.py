"""A real fleet under a real Prometheus: every expression of the dashboards and alerts finds something.

There is no Grafana here. What it would do, choosing jobs and instances and filling in its variables, is done by hand.
"""

import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.conftest import COMMAND
from tests.deploy.committed import PROMETHEUS, ROOT, SELECTOR, alerts, dashboards, queries, variables
from tests.deploy.programs import program
from tests.role_process import TIMEOUT_S, free_address, wait_for

from minefleet.monitoring.scrape_targets import TARGETS_FILE

pytestmark = pytest.mark.fleet

ROLES = {"replay": 1, "parameters": 1, "learner": 1, "actor": 5}
"""Processes of each job: four actors, and the evaluator, which is one of them."""
FLEET = (
    *("rollout_config.num_rollout_workers=4", "rollout_config.worker_config.num_envs=2"),
    *("rollout_config.worker_config.envs_per_process=2", "eval_interval=10", "eval_episodes=2"),
)
RATE_INTERVAL = "10s"
"""Ten scrapes."""


def silent_parts() -> list[str]:
    """Parts of expressions that find nothing in a fleet that is well, as docs/monitoring.md lists them."""
    section = (ROOT / "docs/monitoring.md").read_text().partition("## Queries that find nothing")[2]
    return [part.replace("\\|", "|") for part in re.findall(r"^\| `([^`]+)` \|", section, flags=re.MULTILINE)]


SILENT = silent_parts()


@dataclass(frozen=True, slots=True)
class Watched:
    """A fleet, and the Prometheus that scrapes it."""

    prometheus: str
    run: Path
    """The run directory."""

    def ask(self, path: str, **parameters: str) -> Any:
        """Asks Prometheus's API; a query that it refuses fails the test with its reason."""
        url = f"http://{self.prometheus}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression gives now."""
        return list(self.ask("query", query=expression)["result"])

    def is_scraped(self) -> bool:
        """Whether there are enough samples for rates, none of them NaN, as some are until the first evaluation ends."""
        ready = (
            f"count_over_time(up[{RATE_INTERVAL}]) > 8 and rate(minefleet_learner_trained_steps[{RATE_INTERVAL}]) > 0"
        )
        return bool(
            self.query(f"minefleet_learner_iteration > 3 and minefleet_learner_eval_return_mean > 0 and {ready}")
        )


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A fleet that trains CartPole, scraped every second by its own targets under the committed alerts."""
    program("prometheus")
    directory = tmp_path_factory.mktemp("watched")
    with training(directory / "run", directory / "train.log"), scraping(directory) as address:
        fleet = Watched(address, directory / "run")
        wait_for(fleet.is_scraped)
        yield fleet


@contextmanager
def training(run: Path, log: Path) -> Iterator[None]:
    """Runs a fleet, all of whose roles are up."""
    with log.open("w") as out:
        command = [*COMMAND, "train", "CartPole-v1", "stop.env_steps=0", *FLEET, "--run-dir", str(run)]
        process = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            wait_for(lambda: len(targets(run)) == sum(ROLES.values()) or process.poll() is not None)
            assert process.poll() is None, log.read_text()
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(TIMEOUT_S)
    assert targets(run) == []


def targets(run: Path) -> list[tuple[str, str]]:
    """Job and address of each target that the run has written."""
    path = run / TARGETS_FILE
    written = json.loads(path.read_text()) if path.exists() else []
    return [(target["labels"]["job"], *target["targets"]) for target in written]


@contextmanager
def scraping(directory: Path) -> Iterator[str]:
    """Runs Prometheus; yields its address."""
    config = yaml.safe_load((PROMETHEUS / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(PROMETHEUS / name) for name in config["rule_files"]]
    found_by = {"files": [str(directory / "run" / TARGETS_FILE)], "refresh_interval": "1s"}
    config["scrape_configs"] = [{"job_name": "minefleet", "file_sd_configs": [found_by]}]
    (directory / "prometheus.yaml").write_text(yaml.safe_dump(config))
    address = free_address()
    command = [
        program("prometheus"),
        f"--config.file={directory / 'prometheus.yaml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={address}",
    ]
    with (directory / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_for(lambda: is_ready(address) or process.poll() is not None)
            assert process.poll() is None, (directory / "prometheus.log").read_text()
            yield address
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)


def is_ready(address: str) -> bool:
    """Whether Prometheus answers queries."""
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=TIMEOUT_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def filled_in(expression: str, chosen: dict[str, str]) -> str:
    """Does what Grafana does with variables."""
    for name, value in {**chosen, "__rate_interval": RATE_INTERVAL}.items():
        expression = expression.replace(f"${name}", value)
    return expression


def choices(watched: Watched, board: dict[str, Any]) -> dict[str, str]:
    """A dashboard's variables, everything chosen: a regular expression, escaped as in a string."""
    chosen: dict[str, str] = {}
    for name, metric, label in variables(board):
        found = watched.query(f"count by ({label}) ({filled_in(metric, chosen)})")
        assert found, metric
        chosen[name] = "|".join(sorted(re.escape(each["metric"][label]) for each in found)).replace("\\", "\\\\")
    return chosen


def is_excused(expression: str, excuses: list[str]) -> bool:
    """Whether a part of it, whatever is chosen, may find nothing."""
    plain = re.sub(r'job=~"\$job",instance=~"\$instance",?', "", expression)
    return any(part in plain for part in excuses)


@pytest.mark.parametrize("name", dashboards())
def test_every_query_of_a_dashboard_finds_numbers(watched: Watched, name: str) -> None:
    board = dashboards()[name]
    chosen = choices(watched, board)
    empty, without_numbers = [], []
    for place, query in queries(board):
        found = watched.query(filled_in(query, chosen))
        if not found and not is_excused(query, SILENT):
            empty.append(f"{place}: {query}")
        if all(series["value"][1] == "NaN" for series in found) and not is_excused(query, SILENT):
            without_numbers.append(f"{place}: {query}")
    assert not empty
    assert not without_numbers


def test_silent_parts_each_occur_in_a_query_or_an_alert() -> None:
    asked = [query for board in dashboards().values() for _, query in queries(board)]
    asked += [alert["expr"] for alert in alerts().values()]
    assert SILENT and [part for part in SILENT if not any(is_excused(query, [part]) for query in asked)] == []


def test_a_role_that_restarts_is_scraped_at_its_new_port(watched: Watched) -> None:
    card = watched.run / "roles/actor-3.json"
    before = json.loads(card.read_text())
    os.kill(before["pid"], signal.SIGKILL)
    wait_for(lambda: json.loads(card.read_text())["metrics_address"] not in ("", before["metrics_address"]))
    address = json.loads(card.read_text())["metrics_address"]
    up = 'up{name="actor-3"} == 1'
    wait_for(lambda: [series["metric"]["instance"] for series in watched.query(up)] == [address])


def test_monitor_scrapes_every_role_of_a_run_and_ends_with_it_by_ctrl_c(watched: Watched) -> None:
    address = free_address()
    command = [*COMMAND, "monitor", str(watched.run), "--listen", address]
    monitored = Watched(address, watched.run)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as monitor:
        wait_for(lambda: is_ready(address) or monitor.poll() is not None)
        assert monitor.poll() is None
        wait_for(lambda: len(monitored.query("up == 1")) == sum(ROLES.values()))
        found = {series["metric"]["job"]: int(series["value"][1]) for series in monitored.query("count by (job) (up)")}
        monitor.send_signal(signal.SIGINT)
    assert found == ROLES
    assert not is_ready(address)


@pytest.mark.parametrize("name", alerts())
def test_alert_selectors_each_find_a_series_of_a_fleet(watched: Watched, name: str) -> None:
    expression = alerts()[name]["expr"]
    watched.query(expression)
    selectors = SELECTOR.findall(expression)
    assert selectors
    assert not [each for each in selectors if not watched.query(each) and not is_excused(each, SILENT)]


def test_prometheus_evaluates_all_alerts_and_none_fires_in_a_fleet_that_is_well(watched: Watched) -> None:
    rules = [rule for group in watched.ask("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == alerts().keys()
    assert {rule["health"] for rule in rules} == {"ok"}
    assert not [rule["name"] for rule in rules if rule["state"] == "firing"]


@pytest.mark.parametrize("role", ROLES)
def test_promtool_finds_no_fault_in_what_a_role_exports(watched: Watched, role: str) -> None:
    with urllib.request.urlopen(f"http://{dict(targets(watched.run))[role]}/metrics", timeout=TIMEOUT_S) as answer:
        exported = answer.read()
    done = subprocess.run([program("promtool"), "check", "metrics"], input=exported, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
