"""The learner: how long its loop stands still so that weights are published, whatever others do.

    python benchmarks/publishing.py [--seconds 10] [--case quiet actor-frozen parameters-down parameters-killed]

A fleet of `minefleet train` with two actors trains a policy of 284 MB of float32 in 300 tensors, all of which change
with every iteration. Its largest `publish_blocked_s` is taken

    quiet             while nothing happens
    actor-frozen      while one actor is stopped by SIGSTOP
    parameters-down   while parameters is stopped by SIGSTOP
    parameters-killed after parameters was ended by SIGKILL

and until five iterations later, from the rows of `metrics.jsonl`. The peer is the longest of bare copies of as many
bytes, one a second in another process meanwhile: what the machine allows, with all that runs on it. Beside it, how many
iterations that were, how far the loop was ahead of the newest published version (max_staleness is 2, so 3 at most), and
the longest time between two rows.
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
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from harness.large_policy import SIZE_BYTES
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
"""Recipients before and after."""

Row = Mapping[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each case lasts (default: 10)")
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    arguments = parser.parse_args()
    seen = {}
    with tempfile.TemporaryDirectory() as scratch, training(Path(scratch) / "run") as fleet:
        fleet.wait_for(WARM_UP)
        for case in arguments.case:
            with copying() as copies_s:
                rows = fleet.suffer(*CASES[case], arguments.seconds)
            seen[case] = Seen(rows, max(copies_s))
    print(table(seen), flush=True)
    for case, one in seen.items():
        ours, peer = one.blocked_s, one.bare_s
        line = {"benchmark": "publishing", "case": case, "unit": "s", "ours": ours, "peer": peer, "limit": LIMIT_S}
        print(json.dumps(line | {"ratio_peer": peer / ours, "ratio_limit": LIMIT_S / ours}), flush=True)


@dataclass(frozen=True, slots=True)
class Seen:
    """The observations of a case."""

    rows: Sequence[Row]
    bare_s: float

    @property
    def blocked_s(self) -> float:
        """The longest that the loop stood still."""
        return max(float(row["publish_blocked_s"]) for row in self.rows)


@contextmanager
def copying() -> Iterator[list[float]]:
    """Copies as many bytes as the policy has once a second, into memory that was used before; yields the seconds."""
    source, target = np.ones(SIZE_BYTES, np.uint8), np.zeros(SIZE_BYTES, np.uint8)
    stopping, copies_s = threading.Event(), list[float]()

    def copy() -> None:
        while not copies_s or not stopping.wait(1.0):
            began = time.monotonic()
            np.copyto(target, source)
            copies_s.append(time.monotonic() - began)

    thread = threading.Thread(target=copy)
    thread.start()
    try:
        yield copies_s
    finally:
        stopping.set()
        thread.join()


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


def table(seen: Mapping[str, Seen]) -> str:
    """The cases as rows of text."""
    cells = [["", "blocked at most, s", "bare copy, s", "iterations", "ahead", "longest gap, s"]]
    for case, one in seen.items():
        gap_s = max(after["wall_s"] - before["wall_s"] for before, after in pairwise(one.rows))
        ahead = 1 + max(row["staleness_max"] for row in one.rows)
        figures = (f"{one.blocked_s:.3f}", f"{one.bare_s:.3f}", str(len(one.rows)), str(ahead), f"{gap_s:.1f}")
        cells.append([case, *figures])
    return aligned(cells)


if __name__ == "__main__":
    main()
