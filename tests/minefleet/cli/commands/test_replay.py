"""`minefleet replay`: mistakes on its command line, and what its reports look like."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from minefleet.cli.output.replay_reports import RENDER

DEPARTURE = {
    "stream": "s",
    "chunk": 1,
    "sequences": [4, 5, 7],
    "reason": "stale",
    "uses": 0,
    "oldest_version": 3,
    "left_at": "2026-01-01T12:00:00+01:00",
}


def shown(action: str, **shard: Any) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(RENDER[action]({"shards": [{"name": "replay", "store": "store", **shard}]}))
    return captured.get()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["stats", "nowhere"], "there is no run in nowhere"),
        (["stats"], "there is no run in"),
        (["fsck", "a", "b"], "unrecognized arguments: b"),
        (["export"], "the following arguments are required: DIR"),
        (["mend"], "invalid choice: 'mend'"),
        (["why-dropped", "--limit", "0"], "must be >= 1"),
    ],
)
def test_replay_command_with_a_mistake_exits_2_and_names_it(tmp_path: Path, arguments: list[str], part: str) -> None:
    command = [sys.executable, "-m", "minefleet", "replay", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert part in done.stderr and "Traceback" not in done.stderr


def test_help_of_replay_names_every_action() -> None:
    command = [sys.executable, "-m", "minefleet", "replay", "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert all(action in text for action in RENDER)


def test_why_dropped_without_departures_says_that_nothing_has_left() -> None:
    assert "nothing has left within the window" in shown("why-dropped", departures=[])


def test_why_dropped_shows_departures_as_a_table() -> None:
    text = shown("why-dropped", departures=[DEPARTURE])
    assert all(part in text for part in ("2026-01-01T12:00:00+01:00", "4-5, 7", "stale"))
