"""Tells Prometheus where the roles of a run are, from the files that they leave below the run directory."""

import json
from pathlib import Path
from typing import Any

from minefleet.core.files import write_whole
from minefleet.monitoring.status import read_cards
from minefleet.v1 import status_service_pb2

ROLE_PREFIX = "ROLE_"
SCRAPE_CONFIG = """\
global: {{scrape_interval: {interval_s}s}}
scrape_configs:
  - job_name: minefleet
    file_sd_configs: [{{files: [{targets}], refresh_interval: {interval_s}s}}]
"""


def scrape_targets(run_dir: Path) -> list[dict[str, Any]]:
    """Each role's target as `file_sd` and `http_sd` have it; the job is the role, as in the dashboards and alerts."""
    roles = set(status_service_pb2.Role.keys())
    return [
        {
            "targets": [card["metrics_address"]],
            "labels": {"job": card["role"].removeprefix(ROLE_PREFIX).lower(), "name": card["name"]},
        }
        for card in read_cards(run_dir)
        if card["metrics_address"] and card["role"] in roles
    ]


def write_targets(run_dir: Path, path: Path) -> list[str]:
    """Writes the targets whole, if they have changed; returns the roles' names."""
    found = scrape_targets(run_dir)
    text = json.dumps(found, indent=1) + "\n"
    if not path.exists() or path.read_text() != text:
        write_whole(path, text)
    return [target["labels"]["name"] for target in found]


def write_scrape_config(path: Path, targets: Path, interval_s: int) -> None:
    """Writes the configuration of a Prometheus that scrapes these targets."""
    write_whole(path, SCRAPE_CONFIG.format(targets=json.dumps(str(targets)), interval_s=interval_s))
