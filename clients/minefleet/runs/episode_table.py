"""The columns of `episodes.csv`, and its reader."""

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from minefleet.core.file_tail import last_lines

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

LAST_BYTES = 2**17
"""At the end of the table, of which the last rows are read."""


def read_episodes(path: Path) -> list[dict[str, Any]]:
    """The rows of the table, without a last one that is still being written; [] where there is no table yet."""
    if not path.exists():
        return []
    return _rows(path.read_text(encoding="utf-8"))


def read_last_episodes(path: Path) -> list[dict[str, Any]]:
    """The last rows of the table, about a thousand; what stands before is not read."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        header = file.readline()
    return _rows(header.decode(errors="replace") + last_lines(path, LAST_BYTES, begin=len(header)))


def _rows(text: str) -> list[dict[str, Any]]:
    rows = csv.DictReader(line for line in text.splitlines(keepends=True) if line.endswith("\n"))
    return [{name: read(row[name]) for name, read in EPISODE_COLUMNS.items()} for row in rows]
