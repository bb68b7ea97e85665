"""A real fleet under a real Prometheus: every expression of the dashboards and alerts finds something.

There is no Grafana here. What it would do, choosing jobs and instances and filling in its variables, is done by hand.
"""

import json
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
from tests.deploy.committed import PROMETHEUS, SELECTOR, alerts, dashboards, queries, variables
from tests.deploy.programs import program
from tests.role_process import TIMEOUT_S, free_address, wait_for

pytestmark = pytest.mark.fleet

ROLES = ("replay", "parameters", "learner", "actor")
RATE_INTERVAL = "10s"
"""Ten scrapes."""
SILENT = {
    "minefleet_learner_head_entropy": "CartPole's action has no named parts",
    'ALERTS{alertstate="firing"}': "nothing is wrong",
    'grpc_server_handled_total{grpc_code!="OK"}': "no call needs to end otherwise",
    'grpc_server_handled_total{grpc_code=~"INTERNAL|UNKNOWN|DATA_LOSS"}': "no call fails",
    'grpc_server_handled_total{grpc_code=~"UNAUTHENTICATED|PERMISSION_DENIED"}': "nobody is refused",
}
"""Parts of expressions that find nothing in a fleet that is well."""
NAN = {
    "minefleet_learner_eval_return_mean": "no version is evaluated",
}
"""Parts of expressions that find a series without a number."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A fleet, and the Prometheus that scrapes it."""

    prometheus: str
    metrics_addresses: dict[str, str]
    """By role."""

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
        """Whether there are enough samples for rates, none of them NaN, as some are until the first iteration ends."""
        ready = (
            f"count_over_time(up[{RATE_INTERVAL}]) > 8 and rate(minefleet_learner_trained_steps[{RATE_INTERVAL}]) > 0"
        )
        return bool(self.query(f"minefleet_learner_iteration > 3 and {ready}"))


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Four roles that train CartPole, scraped every second under the committed job names and alerts."""
    program("prometheus")
    directory = tmp_path_factory.mktemp("watched")
    with training(directory / "run", directory / "train.log") as cards, scraping(directory, cards) as address:
        fleet = Watched(address, cards)
        wait_for(fleet.is_scraped)
        yield fleet


@contextmanager
def training(run: Path, log: Path) -> Iterator[dict[str, str]]:
    """Runs a fleet; yields its metrics addresses by role."""
    with log.open("w") as out:
        command = [*COMMAND, "train", "cartpole", "stop.env_steps=0", "--run-dir", str(run)]
        process = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            wait_for(lambda: len(addresses(run)) == len(ROLES) or process.poll() is not None)
            assert process.poll() is None, log.read_text()
            yield addresses(run)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(TIMEOUT_S)


def addresses(run: Path) -> dict[str, str]:
    """The metrics addresses of the roles that are up."""
    cards = [json.loads(path.read_text()) for path in (run / "roles").glob("*.json")]
    return {card["role"].removeprefix("ROLE_").lower(): card["metrics_address"] for card in cards if card["address"]}


@contextmanager
def scraping(directory: Path, targets: dict[str, str]) -> Iterator[str]:
    """Runs Prometheus; yields its address."""
    config = yaml.safe_load((PROMETHEUS / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(PROMETHEUS / name) for name in config["rule_files"]]
    for job in config["scrape_configs"]:
        del job["dns_sd_configs"]
        job["static_configs"] = [{"targets": [targets[job["job_name"]]]}]
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


def is_excused(expression: str, excuses: dict[str, str]) -> bool:
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
        if all(series["value"][1] == "NaN" for series in found) and not is_excused(query, {**SILENT, **NAN}):
            without_numbers.append(f"{place}: {query}")
    assert not empty
    assert not without_numbers


@pytest.mark.parametrize("name", alerts())
def test_everything_that_an_alert_looks_at_is_there(watched: Watched, name: str) -> None:
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
    with urllib.request.urlopen(f"http://{watched.metrics_addresses[role]}/metrics", timeout=TIMEOUT_S) as answer:
        exported = answer.read()
    done = subprocess.run([program("promtool"), "check", "metrics"], input=exported, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
