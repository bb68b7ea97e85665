"""`minefleet parameters`: mistakes on its command line."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["list", "nowhere"], "there is no run in nowhere"),
        (["list"], "there is no run in"),
        (["list", "a", "b"], "unrecognized arguments: b"),
        (["list", "3"], "there is no run in 3"),
        (["list", "--version", "3"], "unrecognized arguments: --version"),
        (["pin", "--version", "0"], "must be >= 1, got 0"),
        (["export"], "the following arguments are required: DIR"),
        (["export", "out", "--version", "0"], "must be >= 1"),
        (["export", "out", "nowhere"], "there is no run in nowhere"),
        (["show"], "invalid choice: 'show'"),
    ],
)
def test_parameters_command_with_a_mistake_exits_2_and_names_it(
    tmp_path: Path, arguments: list[str], part: str
) -> None:
    command = [sys.executable, "-m", "minefleet", "parameters", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert part in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_help_of_parameters_names_every_action() -> None:
    command = [sys.executable, "-m", "minefleet", "parameters", "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert all(action in text for action in ("list", "pin", "unpin", "export"))
