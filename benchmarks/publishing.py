"""The learner: how long its loop stands still so that weights are published, whatever others do.

    python benchmarks/publishing.py [--seconds 10]

A fleet of `minefleet train` with two actors trains a policy of 284 MB of float32 in 300 tensors, all of which change
with every iteration. Its largest `publish_blocked_s` is taken

    quiet             while nothing happens
    actor-frozen      while one actor is stopped by SIGSTOP
    parameters-down   while parameters is stopped by SIGSTOP
    parameters-killed after parameters was ended by SIGKILL

and until five iterations later, from the rows of `metrics.jsonl`. Beside it, how many iterations that were, how many of
them the loop had trained before parameters heard of any (max_staleness is 2, so 3 at most), and the longest time
between two rows.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness.peers import BENCHMARKS
from harness.report import aligned

LIMIT_S = 0.1
WARM_UP = 8
"""Iterations before the first case: until all memory has been used once."""
AFTER = 5
LOOK_S = 0.1
CASES: Mapping[str, tuple[str, Sequence[signal.Signals]]] = {
    "quiet": ("learner", ()),
    "actor-frozen": ("actor-1", (signal.SIGSTOP, signal.SIGCONT)),
    "parameters-down": ("parameters", (signal.SIGSTOP, signal.SIGCONT)),
    "parameters-killed": ("parameters", (signal.SIGKILL,)),
}
"""Who is sent what before and after."""

Row = Mapping[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each case lasts (default: 10)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, training(Path(scratch) / "run") as fleet:
        fleet.wait_for(WARM_UP)
        rows_of = {case: fleet.suffer(*trouble, arguments.seconds) for case, trouble in CASES.items()}
    print(table(rows_of), flush=True)
    for case, rows in rows_of.items():
        ours = max(row["publish_blocked_s"] for row in rows)
        line = {"benchmark": "publishing", "case": case, "unit": "s", "ours": ours, "peer": None, "limit": LIMIT_S}
        print(json.dumps(line | {"ratio_peer": None, "ratio_limit": LIMIT_S / ours}), flush=True)


class Fleet:
    """A `minefleet train` under way."""

    def __init__(self, directory: Path, process: subprocess.Popen[bytes]) -> None:
        self._directory = directory
        self._process = process

    def rows(self) -> list[Row]:
        """The rows of the iterations so far."""
        path = self._directory / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_for(self, iterations: int) -> list[Row]:
        """Waits for so many rows and returns all."""
        pause = threading.Event()
        while len(rows := self.rows()) < iterations:
            if self._process.poll() is not None:
                raise RuntimeError(f"the run ended first, with {self._process.returncode}")
            pause.wait(LOOK_S)
        return rows

    def suffer(self, role: str, signals: Sequence[signal.Signals], seconds: float) -> list[Row]:
        """Sends a role signals, so many seconds between them, and returns the rows from then on."""
        card = json.loads((self._directory / "roles" / f"{role}.json").read_text())
        begin, until = len(self.rows()), time.monotonic() + seconds
        for number in signals[:1]:
            os.kill(card["pid"], number)
        threading.Event().wait(until - time.monotonic())
        for number in signals[1:]:
            os.kill(card["pid"], number)
        return self.wait_for(len(self.rows()) + AFTER)[begin:]


@contextmanager
def training(directory: Path) -> Iterator[Fleet]:
    """Runs the fleet until the block ends."""
    module = BENCHMARKS / "harness" / "large_policy.py"
    command = [sys.executable, "-m", "minefleet", "train", str(module), "--run-dir", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield Fleet(directory, process)
    finally:
        process.terminate()
        process.wait()


def table(rows_of: Mapping[str, Sequence[Row]]) -> str:
    """The cases as rows of text."""
    cells = [["", "blocked at most, s", "iterations", "ahead", "longest gap, s"]]
    for case, rows in rows_of.items():
        blocked_s = max(row["publish_blocked_s"] for row in rows)
        gaps = [after["wall_s"] - before["wall_s"] for before, after in pairwise(rows)]
        ahead = 1 + max(row["staleness_max"] for row in rows)
        cells.append([case, f"{blocked_s:.3f}", str(len(rows)), str(ahead), f"{max(gaps):.1f}"])
    return aligned(cells)


if __name__ == "__main__":
    main()
