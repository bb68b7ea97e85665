"""The Prometheus and the Grafana of one run: their files below the run directory, and the commands that start them."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from minefleet.core.atomic_files import write_whole
from minefleet.monitoring.scrape_targets import TARGETS_FILE

MONITOR_DIRECTORY = "monitor"
"""In the run directory."""
INTERVAL_S = 5
"""Between two scrapes."""
DEPLOY = Path(__file__).parents[3] / "deploy"
"""Alerts, data source and dashboards; only in a checkout."""
PACKAGED_HOME = Path("/usr/share/grafana")
"""Home of a Grafana that was installed as a package."""
ANYONE_MAY_LOOK = {
    "GF_AUTH_ANONYMOUS_ENABLED": "true",
    "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
    "GF_AUTH_DISABLE_LOGIN_FORM": "true",
    "GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION": "true",
    "GF_ANALYTICS_REPORTING_ENABLED": "false",
    "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
}
"""As in `compose.yaml`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MonitorProgram:
    """A program that can be started."""

    name: str
    command: list[str]
    variables: dict[str, str] = field(default_factory=dict)


def prometheus(run_dir: Path, listen: str) -> MonitorProgram | None:
    """A Prometheus that scrapes the run's targets and judges the alerts; None where none is installed.

    Args:
        run_dir: The run directory, absolute.
        listen: `host:port` of its page.
    """
    program, folder = shutil.which("prometheus"), run_dir / MONITOR_DIRECTORY
    if program is None:
        return None
    found_by = {"files": [str(run_dir / TARGETS_FILE)], "refresh_interval": f"{INTERVAL_S}s"}
    settings = {
        "global": {"scrape_interval": f"{INTERVAL_S}s", "evaluation_interval": f"{INTERVAL_S}s"},
        "rule_files": [str(DEPLOY / "prometheus/alerts.yaml")],
        "scrape_configs": [{"job_name": "minefleet", "file_sd_configs": [found_by]}],
    }
    _write(folder / "prometheus.yaml", settings)
    options = {
        "config.file": folder / "prometheus.yaml",
        "storage.tsdb.path": folder / "prometheus",
        "web.listen-address": listen,
        "log.level": "warn",
    }
    return MonitorProgram(
        name="prometheus", command=[program, *(f"--{name}={value}" for name, value in options.items())]
    )


def grafana(run_dir: Path, listen: str, source: str) -> MonitorProgram | None:
    """A Grafana that shows the dashboards; None where none is installed, or there are no dashboards.

    Args:
        run_dir: The run directory, absolute.
        listen: `host:port` of its page.
        source: `host:port` of Prometheus.
    """
    program, folder = shutil.which("grafana"), run_dir / MONITOR_DIRECTORY / "grafana"
    if program is None or not DEPLOY.is_dir():
        return None
    committed = DEPLOY / "grafana/provisioning"
    datasources = yaml.safe_load((committed / "datasources/prometheus.yaml").read_text())
    providers = yaml.safe_load((committed / "dashboards/minefleet.yaml").read_text())
    datasources["datasources"][0] |= {"url": f"http://{source}", "jsonData": {"timeInterval": f"{INTERVAL_S}s"}}
    providers["providers"][0]["options"]["path"] = str(DEPLOY / "grafana/dashboards")
    _write(folder / "provisioning/datasources/prometheus.yaml", datasources)
    _write(folder / "provisioning/dashboards/minefleet.yaml", providers)
    host, _, port = listen.rpartition(":")
    places = {
        "GF_PATHS_DATA": str(folder / "data"),
        "GF_PATHS_LOGS": str(folder / "logs"),
        "GF_PATHS_PLUGINS": str(folder / "plugins"),
        "GF_PATHS_PROVISIONING": str(folder / "provisioning"),
        "GF_SERVER_HTTP_ADDR": host,
        "GF_SERVER_HTTP_PORT": port,
    }
    home = PACKAGED_HOME if PACKAGED_HOME.is_dir() else Path(program).resolve().parents[1]
    command = [program, "server", f"--homepath={home}"]
    return MonitorProgram(name="grafana", command=command, variables=ANYONE_MAY_LOOK | places)


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, yaml.safe_dump(content, sort_keys=False))
