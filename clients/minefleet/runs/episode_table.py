"""The columns of `episodes.csv`, and its reader."""

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

EPISODE_COLUMNS: Mapping[str, Callable[[str], Any]] = MappingProxyType(
    {
        "iteration": int,
        "env_steps": int,
        "wall_s": float,
        "policy_version": int,
        "evaluation": "True".__eq__,
        "task": str,
        "episode_return": float,
        "discounted_return": float,
        "length": int,
        "terminated": "True".__eq__,
        "truncated": "True".__eq__,
        "failure": str,
        "stream": str,
        "episode": int,
        "video": str,
        "metrics": json.loads,
    }
)
"""By name in the order of the file, each with what reads its text. `docs/trackers.md` has their meanings."""


def read_episodes(path: Path) -> list[dict[str, Any]]:
    """The rows of the table, without a last one that is still being written; [] where there is no table yet."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    rows = csv.DictReader(line for line in lines if line.endswith("\n"))
    return [{name: read(row[name]) for name, read in EPISODE_COLUMNS.items()} for row in rows]
