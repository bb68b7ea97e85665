"""Tells Prometheus where the roles of a run are, from the files that they leave below the run directory."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from minefleet.core.atomic_files import write_whole
from minefleet.monitoring.status import read_cards
from minefleet.rpc.enum_names import role_word
from minefleet.v1 import status_service_pb2

TARGETS_FILE = "targets.json"
"""In the run directory, as Prometheus' `file_sd` and `http_sd` have it."""


def scrape_targets(run_dir: Path) -> list[dict[str, Any]]:
    """Each role's target as `file_sd` and `http_sd` have it; the job is the role, as in the dashboards and alerts."""
    roles = set(status_service_pb2.Role.keys())
    return [
        {
            "targets": [card["metrics_address"]],
            "labels": {"job": role_word(status_service_pb2.Role.Value(card["role"])), "name": card["name"]},
        }
        for card in read_cards(run_dir)
        if card["metrics_address"] and card["role"] in roles
    ]


def write_targets(run_dir: Path) -> list[str]:
    """Writes the targets whole, if they have changed; returns the roles' names."""
    found, path = scrape_targets(run_dir), run_dir / TARGETS_FILE
    text = json.dumps(found, indent=1) + "\n"
    if not path.exists() or path.read_bytes() != text.encode():
        write_whole(path, text)
    return [target["labels"]["name"] for target in found]


def keep_targets(run_dir: Path) -> None:
    """Writes the targets if they can be written: a run must not end because its disk is full."""
    with suppress(OSError):
        write_targets(run_dir)
