"""The committed files of `deploy/`: dashboards, alerts, and the expressions in them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "deploy" / "grafana"
PROMETHEUS = ROOT / "deploy" / "prometheus"
METRIC = re.compile(r"\b(?:minefleet|grpc_server|process)_[a-z0-9_]+\b")
SELECTOR = re.compile(r"\b(?:up|(?:minefleet|grpc_server|process)_[a-z0-9_]+)\b(?:\{[^}]*\})?")


def dashboards() -> dict[str, dict[str, Any]]:
    """All dashboards, by the name of their file."""
    return {path.name: json.loads(path.read_text()) for path in sorted((GRAFANA / "dashboards").glob("*.json"))}


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All panels of a dashboard, rows and what is folded into them included."""
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels", ())


def queries(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every query of a dashboard's panels and annotations, with where it stands."""
    for panel in panels(board):
        for target in panel.get("targets", ()):
            yield f"{board['title']} / {panel['title']} / {target['refId']}", target["expr"]
    for annotation in board["annotations"]["list"]:
        yield f"{board['title']} / {annotation['name']}", annotation["expr"]


def variables(board: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Every variable: its name, whose label it takes its values from, and which label."""
    for variable in board["templating"]["list"]:
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
        assert found, variable["query"]
        yield variable["name"], found[1], found[2]


def alerts() -> dict[str, dict[str, Any]]:
    """All alerts, by name."""
    groups = yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    named = {rule["alert"]: rule for rule in rules}
    assert len(named) == len(rules)
    return named
