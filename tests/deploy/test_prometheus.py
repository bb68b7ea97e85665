"""Prometheus's configuration and alerts, by its own tool, and the runbooks of the alerts."""

import re
import subprocess

import pytest
import yaml
from tests.deploy.committed import PROMETHEUS, ROOT, alerts, dashboards, panels
from tests.deploy.programs import program

RUNBOOKS = ROOT / "docs" / "runbooks.md"
JOBS = ["replay", "parameters", "learner", "actor"]


def sections() -> dict[str, str]:
    """The text of each runbook, by its title."""
    _, *parts = re.split(r"^## (.+)\n", RUNBOOKS.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def anchor(title: str) -> str:
    """The anchor of a heading."""
    return title.lower().replace(" ", "-")


@pytest.mark.parametrize(
    "command",
    [["check", "config", "prometheus.yaml"], ["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]],
    ids=" ".join,
)
def test_promtool_accepts_our_prometheus_files(command: list[str]) -> None:
    done = subprocess.run([program("promtool"), *command], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_role_is_a_job_that_is_found_by_its_name() -> None:
    config = yaml.safe_load((PROMETHEUS / "prometheus.yaml").read_text())
    assert [job["job_name"] for job in config["scrape_configs"]] == [*JOBS, "host"]
    for job in config["scrape_configs"]:
        (found,) = job["dns_sd_configs"]
        assert (found["names"], found["type"], found["port"]) == ([job["job_name"]], "A", 9100)
    assert config["rule_files"] == ["alerts.yaml"]


def test_grafana_takes_the_scrape_interval_for_granted_that_prometheus_has() -> None:
    path = ROOT / "deploy/grafana/provisioning/datasources/prometheus.yaml"
    (datasource,) = yaml.safe_load(path.read_text())["datasources"]
    interval = yaml.safe_load((PROMETHEUS / "prometheus.yaml").read_text())["global"]["scrape_interval"]
    assert datasource["jsonData"]["timeInterval"] == interval


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    cases = yaml.safe_load((PROMETHEUS / "alerts_test.yaml").read_text())["tests"]
    checks = [check for case in cases for check in case["alert_rule_test"]]
    assert {check["alertname"] for check in checks if check["exp_alerts"]} == alerts().keys()
    assert {check["alertname"] for check in checks if not check["exp_alerts"]} == alerts().keys()


@pytest.mark.parametrize("name", alerts())
def test_an_alert_says_what_is_wrong_how_bad_it_is_and_what_to_do(name: str) -> None:
    rule = alerts()[name]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["summary"]
    path, _, linked = rule["annotations"]["runbook_url"].partition("#")
    assert ROOT / path == RUNBOOKS
    assert linked == anchor(name)
    assert name in sections()
    text = sections()[name]
    assert text.index("**Look**") < text.index("**Do**")


def test_every_runbook_is_of_an_alert() -> None:
    assert sections().keys() == alerts().keys()


@pytest.mark.parametrize("name", sections())
def test_a_runbook_names_panels_and_sections_that_there_are(name: str) -> None:
    titles = {board["title"].removeprefix("minefleet / "): panels(board) for board in dashboards().values()}
    known = {f"{title} / {panel['title']}" for title, shown in titles.items() for panel in shown}
    text = " ".join(sections()[name].split())
    assert set(re.findall(r"\*(\w+ / [^*]+)\*", text)) <= known
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= {anchor(title) for title in sections()}
    assert all((ROOT / path).exists() for path in re.findall(r"`((?:docs/)?[\w-]+\.md)`", text))
