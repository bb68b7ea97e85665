"""A role as a process that tests hurt, and what they need for it: addresses, small disks, patience."""

import os
import re
import select
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from minefleet.launch.ports import free_port

TIMEOUT_S = 60.0
BEAT_S = 0.02
"""Interval of `wait_for`."""


class RoleProcess:
    """`python -m MODULE` on a run directory, started as often as asked."""

    def __init__(self, module: str, directory: Path, metrics_address: str) -> None:
        self.module = module
        self.directory = directory
        self.metrics_address = metrics_address
        self.log = directory / f"{module}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *prefix: str, env: Mapping[str, str] | None = None) -> "subprocess.Popen[bytes]":
        """Starts it and does not wait."""
        command = [*prefix, sys.executable, "-m", self.module, "--run-dir", str(self.directory)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log, env=env)
        return self.process

    @contextmanager
    def running(self, *prefix: str, env: Mapping[str, str] | None = None) -> Iterator["subprocess.Popen[bytes]"]:
        """Runs it until the block ends, and kills it then if it still lives."""
        process = self.start(*prefix, env=env)
        try:
            wait_for(lambda: self.answers() or process.poll() is not None)
            assert process.poll() is None, self.log.read_text()
            yield process
        finally:
            process.kill()
            process.wait(TIMEOUT_S)

    def refusal(self) -> tuple[int, str]:
        """Starts one that refuses to run: exit code and log."""
        process = self.start()
        try:
            return process.wait(TIMEOUT_S), self.log.read_text()
        finally:
            process.kill()

    def end(self) -> int:
        """Asks it to stop, and waits until it has."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(TIMEOUT_S)

    def answers(self) -> bool:
        """Whether it says that it is ready."""
        try:
            return self.get("/readyz")[0] == 200
        except OSError:
            return False

    def get(self, path: str) -> tuple[int, str]:
        """Asks its probes."""
        try:
            with urllib.request.urlopen(f"http://{self.metrics_address}{path}", timeout=TIMEOUT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def sample(self, name: str, **labels: str) -> float:
        """The sum of the samples of a metric that have these labels."""
        total = 0.0
        for line in self.get("/metrics")[1].splitlines():
            match = re.fullmatch(rf"{name}(?:{{(.*)}})? (\S+)", line)
            if match and all(f'{key}="{value}"' in (match[1] or "") for key, value in labels.items()):
                total += float(match[2])
        return total

    def rss_bytes(self) -> int:
        assert self.process is not None
        return int(psutil.Process(self.process.pid).memory_info().rss)


@contextmanager
def small_disk(place: Path, size_bytes: int) -> Iterator[Path]:
    """Puts a disk of its own there; skips the test where that is not permitted."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "minefleet-test", str(place)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk is not permitted here; root may")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def free_address() -> str:
    """One that no outgoing connection of a neighbour can take before the test listens there."""
    return f"127.0.0.1:{free_port('127.0.0.1')}"


def wait_for(condition: Callable[[], bool]) -> None:
    """Waits until it holds; pytest's own timeout ends what never does."""
    beat = threading.Event()
    while not condition():
        beat.wait(BEAT_S)


def wait_for_deaths(*pids: int) -> None:
    """Waits until none of the processes runs any more, whoever has yet to hear of it."""
    for pid in pids:
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            assert select.select([handle], [], [], TIMEOUT_S)[0], f"{pid} still runs"
            os.close(handle)
