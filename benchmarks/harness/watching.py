"""Measures the cost of a command and its child processes from outside, alike for every side of a benchmark."""

import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from harness.peers import BENCHMARKS
from harness.processes import TICKS_PER_S, cpu_s
from minefleet.core.errors import EXIT_SIGNAL

POLL_S = 1.0
ROLES = {
    "minefleet_actor": "actor",
    "minefleet_env": "environments",
    "minefleet_replay": "replay",
    "minefleet_parameters": "parameters",
    "minefleet_learner": "learner",
}
"""By what the command of a process contains."""
GONE = (FileNotFoundError, ProcessLookupError)
"""A process may end while one looks at it."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """All processes of a command at one moment."""

    at_s: float
    pss_bytes: int
    """Their memory, what they share counted once."""
    cpu_s: Mapping[str, float]
    """Processor time so far, by role."""
    busy_s: Mapping[int, float]
    """Time so far that this process's cores were not idle, whoever used them, by core."""


@dataclass(kw_only=True)
class Watch:
    """Watches a command until it ends, or is ended.

    Args:
        command: Its words.
        directory: Where it runs; its output becomes `output` there.
        environ: Variables besides those of this process.
    """

    command: list[str]
    directory: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    pid: int = 0
    """Of the command, once it runs."""

    @property
    def output(self) -> Path:
        """The output so far."""
        return self.directory / "output"

    def run(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Runs the command; ends it by SIGTERM once `is_over`.

        Raises:
            SystemExit: If it fails.
        """
        path = os.pathsep.join(filter(None, (str(BENCHMARKS), os.environ.get("PYTHONPATH"))))
        variables = os.environ | {"PYTHONPATH": path} | dict(self.environ)
        with self.output.open("wb") as output:
            process = subprocess.Popen(
                self.command, cwd=self.directory, env=variables, stdout=output, stderr=subprocess.STDOUT
            )
        self.pid = process.pid
        pause, is_ended = threading.Event(), False
        while process.poll() is None:
            if not is_ended:
                self.samples.append(look(process.pid))
                is_ended = is_over()
                if is_ended:
                    process.terminate()
            pause.wait(POLL_S)
        if process.returncode not in (0, EXIT_SIGNAL if is_ended else 0):
            raise SystemExit(f"{' '.join(self.command)} failed: {self.output.read_text()}")

    @property
    def peak_mb(self) -> float:
        """The most memory that all processes had together."""
        return max(sample.pss_bytes for sample in self.samples) / 1e6

    def cores(self, seconds: float) -> dict[str, float]:
        """Cores that each role used in the last so many seconds."""
        first, last = self._ends(seconds)
        return {
            role: (used_s - first.cpu_s.get(role, 0.0)) / (last.at_s - first.at_s)
            for role, used_s in last.cpu_s.items()
        }

    def busy(self, seconds: float) -> list[float]:
        """Share of the last so many seconds that each core was not idle."""
        first, last = self._ends(seconds)
        return [(last.busy_s[core] - before_s) / (last.at_s - first.at_s) for core, before_s in first.busy_s.items()]

    def _ends(self, seconds: float) -> tuple[Sample, Sample]:
        last = self.samples[-1]
        return next(sample for sample in self.samples if last.at_s - sample.at_s <= seconds), last


def look(pid: int) -> Sample:
    """A process and all that it has started."""
    total_bytes, times = 0, Counter[str]()
    for each, role in family(pid).items():
        with suppress(*GONE):
            total_bytes += pss_bytes(each)
            times[role] += cpu_s(each)  # type: ignore[assignment]  # A counter adds up floats as well.
    return Sample(at_s=time.monotonic(), pss_bytes=total_bytes, cpu_s=times, busy_s=busy_s())


def family(pid: int) -> dict[int, str]:
    """A process, its children, and theirs, each with its role; one without a role of its own has that of its parent."""
    found: dict[int, str] = {}
    todo = [(pid, "launcher")]
    while todo:
        each, parents = todo.pop()
        with suppress(*GONE):
            words = Path(f"/proc/{each}/cmdline").read_text()
            found[each] = next((role for module, role in ROLES.items() if module in words), parents)
            for children in Path(f"/proc/{each}/task").glob("*/children"):
                todo += [(int(child), found[each]) for child in children.read_text().split()]
    return found


def pss_bytes(pid: int) -> int:
    """Memory of a process, its share of what it shares; 0 of one that has ended but was not waited for."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def busy_s() -> dict[int, float]:
    """Seconds that each core of this process has been neither idle nor waiting for a disk."""
    lines = dict(line.split(maxsplit=1) for line in Path("/proc/stat").read_text().splitlines())
    times = {core: [int(ticks) for ticks in lines[f"cpu{core}"].split()] for core in sorted(os.sched_getaffinity(0))}
    # The last two are part of the first two.
    return {core: (sum(ticks[:8]) - ticks[3] - ticks[4]) / TICKS_PER_S for core, ticks in times.items()}
