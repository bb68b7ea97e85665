"""Reads a process's figures from the kernel, and asks a child process: one JSON line there, one back."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.peers import BENCHMARKS

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    return stat_s(Path(f"/proc/{pid}/stat"))


def stat_s(path: Path) -> float:
    """Seconds of processor time by the `stat` of a process, or of a thread."""
    fields = path.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def resident_bytes(pid: int) -> int:
    """Memory that a process holds, without what it maps from files."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) * 1024


def forget_peak(pid: int) -> None:
    """Starts `peak_bytes` anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_bytes(pid: int) -> int:
    """The most memory that a process has held since `forget_peak`, with what it maps from files."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) * 1024


def disk_bytes(directory: Path) -> int:
    """Disk space that a directory takes."""
    return sum(path.stat().st_blocks for path in directory.rglob("*") if path.is_file()) * 512


class Child:
    """A module that runs as a process and answers questions."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.pid = process.pid
        self._process = process

    def tell(self, **question: Any) -> None:
        """Sends a question."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        """Waits for an answer."""
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        if not text:
            raise RuntimeError(f"{self._process.args!r} ended with exit code {self._process.wait()}")
        return json.loads(text)


@contextmanager
def child(module: str, *arguments: str) -> Iterator[Child]:
    """Runs a module until the block ends; it ends by itself when its standard input does, or is told to stop."""
    path = os.pathsep.join(filter(None, (str(BENCHMARKS), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Child(process)
    finally:
        process.terminate()
        process.communicate()
