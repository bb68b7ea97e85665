"""Replay as a process that tests hurt."""

import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.minefleet_replay.conftest import Server

from minefleet.config import EndpointConfig, ServicesConfig
from minefleet.replay import ReplayClient

TIMEOUT_S = 60.0
PAYLOAD = b"payload" * 1000
BEAT_S = 0.02
"""How often `wait_for` looks."""


class ReplayProcess:
    """The replay of one run, on ports of its own."""

    def __init__(self, directory: Path, *, drain_s: float = 5.0, address: str = "", **replay: Any) -> None:
        self.server = Server(directory, **replay)
        self.server.address = address or free_address()
        self.metrics_address = free_address()
        endpoint = EndpointConfig(address=self.server.address, metrics_address=self.metrics_address)
        services = ServicesConfig(replay=[endpoint], drain_s=drain_s)
        self.server.run = replace(self.server.run, config=replace(self.server.run.config, services=services))
        self.server.run.write()
        self.log = directory / "replay.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def store(self) -> Path:
        return self.server.run.shards[0].store

    def start(self, *prefix: str, env: Mapping[str, str] | None = None) -> "subprocess.Popen[bytes]":
        """Starts it and does not wait."""
        command = [*prefix, sys.executable, "-m", "minefleet_replay", "--run-dir", str(self.server.run.directory)]
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
        """Starts a replay that refuses to run: exit code and log."""
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

    def client(self, **arguments: Any) -> ReplayClient:
        return self.server.client(**({"patience_s": TIMEOUT_S} | arguments))

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


def append(replay: ReplayProcess, client: ReplayClient, stream: str, sequence: int, payload: bytes = PAYLOAD) -> str:
    """Appends one fragment. Returns what became of it."""
    (outcome,) = client.append([(replay.server.header(stream, sequence, payload), payload)]).outcomes
    return str(outcome)


@contextmanager
def small_disk(place: Path, size_bytes: int) -> Iterator[Path]:
    """Puts a disk of its own there; skips the test where that is not permitted."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "minefleet-test", str(place)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk is not permitted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


def wait_for(condition: Callable[[], bool]) -> None:
    """Waits until it holds; pytest's own timeout ends what never does."""
    beat = threading.Event()
    while not condition():
        beat.wait(BEAT_S)
