"""Fixtures for several areas: the command line as a process, and engines of Minecraft to play over."""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from tests.engine import prepare_minerl, prepare_minestudio
from tests.engine.prepared import Prepared
from tests.interpreters import minerl_python, minestudio_python

hypothesis.settings.register_profile("same", deadline=None, derandomize=True)
hypothesis.settings.load_profile("same")

# A shell's `&` ignores the one and nohup the other, and what tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

COMMAND = (str(Path(sys.executable).with_name("minefleet")),)
"""The program that `pip install` makes, as users type it; its folder is the first of its search path."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Counts what was skipped, by its reason, however quiet the report is."""
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.getreports("skipped"))
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"skipped {count} test{'s' * (count > 1)}: {reason}", yellow=True)


@dataclass(frozen=True, slots=True)
class Fleet:
    """A `minefleet train` under way."""

    process: subprocess.Popen[str]
    directory: Path

    def rows(self) -> list[dict[str, Any]]:
        """The metrics so far, one dict per iteration."""
        path = self.directory / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def pid(self, role: str) -> int:
        """Process id of a role; 0 while it is not up."""
        card = self.directory / "roles" / f"{role}.json"
        return int(json.loads(card.read_text())["pid"]) if card.exists() else 0

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Waits until the condition holds; fails when the run ends first."""
        while not condition():
            try:
                self.process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            errors = self.process.communicate()[1]
            raise AssertionError(f"the run ended first, with {self.process.returncode}: {errors}")

    def wait_for_env_steps(self, env_steps: int) -> None:
        """Waits until the metrics show so many environment steps."""
        self.wait_for(lambda: bool(self.rows()) and self.rows()[-1]["env_steps"] >= env_steps)

    def finish(self) -> dict[str, Any]:
        """Waits for the end, which must be a success, and returns the JSON line."""
        out, errors = self.process.communicate()
        assert self.process.returncode == 0 and "a fault of minefleet's own" not in errors, errors
        return dict(json.loads(out.splitlines()[-1]))


COUNTERS = ("iteration", "env_steps", "trained_steps", "policy_version", "episodes")


def assert_counters_never_go_back(rows: list[dict[str, Any]]) -> None:
    """Each row of a run counts on from the one before, whatever was killed in between."""
    for before, after in pairwise(rows):
        assert all(after[name] >= before[name] for name in COUNTERS), (before, after)
        assert after["iteration"] == before["iteration"] + 1
        assert after["policy_version"] > before["policy_version"]


def assert_trained(rows: list[dict[str, Any]], iteration_steps: int, *, deaths: int) -> None:
    """A death costs what was trained since the checkpoint, and by the versions of that, what has become too old.

    The busier the machine, the more is trained until a checkpoint is written: the versions say how much it was.
    """
    first, last = rows[0], rows[-1]
    jumps = last["policy_version"] - first["policy_version"] - (last["iteration"] - first["iteration"])
    assert last["env_steps"] - last["trained_steps"] <= iteration_steps * (1 + jumps + 2 * deaths)


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    """Starts `minefleet train` with these arguments in a run directory of its own; ends what is left of it."""
    started: list[Fleet] = []

    def start(*arguments: str, directory: Path = tmp_path / "run") -> Fleet:
        command = [*COMMAND, "train", *arguments]
        if "--resume" not in arguments:
            command += ["--run-dir", str(directory)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        started.append(Fleet(process, directory))
        return started[-1]

    yield start
    for fleet in started:
        if fleet.process.poll() is None:
            fleet.process.send_signal(signal.SIGTERM)
            fleet.process.communicate()
        for stream in (fleet.process.stdout, fleet.process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def evaluate() -> Callable[..., dict[str, Any]]:
    """Runs `minefleet eval --json` and returns what it prints."""

    def run(directory: Path, episodes: int, *arguments: str) -> dict[str, Any]:
        command = [*COMMAND, "eval", str(directory), "--episodes", str(episodes), "--json", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout.splitlines()[-1]))

    return run


@pytest.fixture
def minestudio_engine(tmp_path: Path) -> Iterator[Prepared]:
    """MineStudio over the stand-in engine; skips the test where no interpreter has it."""
    prepared = prepare_minestudio.prepare(minestudio_python(), tmp_path / "minestudio")
    yield prepared
    prepared.end()


@pytest.fixture
def minerl_engine(tmp_path: Path) -> Iterator[Prepared]:
    """MineRL over the stand-in engine; skips the test where no interpreter has it."""
    prepared = prepare_minerl.prepare(minerl_python(), tmp_path / "minerl")
    yield prepared
    prepared.end()
