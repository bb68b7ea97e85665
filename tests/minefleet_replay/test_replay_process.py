"""Replay as a real process, killed and stopped. `make_server` is in conftest; here it only says what to run."""

import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from tests.role_process import free_address

from minefleet.config import EndpointConfig, ServicesConfig
from minefleet.core.errors import UnavailableError
from minefleet.rpc.replay_client import ReplayClient
from minefleet.rpc.retrier import StoppedError

ROUNDS = 3
MAX_REUSE = 2
ACKED_PER_ROUND = 100
WRITERS = 4

Names = dict[tuple[str, int], bytes]


@pytest.fixture
def server(make_server: Callable[..., Any]) -> Any:
    """A run directory that is written, with an address of its own."""
    server = make_server(max_chunks=10_000, max_staleness=1, max_reuse=MAX_REUSE)
    server.address = free_address()
    services = ServicesConfig(replay=[EndpointConfig(address=server.address)], drain_s=5.0)
    server.run = replace(server.run, config=replace(server.run.config, services=services))
    server.run.write()
    return server


def start(server: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "minefleet_replay", "--run-dir", str(server.run.directory)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@contextmanager
def running(server: Any) -> Iterator[subprocess.Popen[str]]:
    """Runs replay until the block ends; kills it then if it still lives."""
    process = start(server)
    try:
        with server.client(patience_s=30.0) as client:
            client.describe()
        yield process
    finally:
        process.kill()
        process.communicate()


def payload_of(stream: str, sequence: int) -> bytes:
    return f"{stream}/{sequence}/".encode() * 500


class Writer(threading.Thread):
    """Appends one stream without end, and keeps what was acked."""

    def __init__(self, server: Any, stream: str, acked: Names, enough: Callable[[], None]) -> None:
        super().__init__()
        self.server = server
        self.stream = stream
        self.acked = acked
        self.enough = enough
        self.stopping = threading.Event()

    def run(self) -> None:
        with self.server.client(stopping=self.stopping) as client, suppress(StoppedError):
            for sequence in range(100_000):
                payload = payload_of(self.stream, sequence)
                client.append([(self.server.header(self.stream, sequence, payload), payload)])
                self.acked[self.stream, sequence] = payload
                self.enough()


class Trainer(threading.Thread):
    """Leases, reads and acks without end, and counts the uses that were acked. Goes on where another has stopped."""

    def __init__(self, server: Any, uses: Counter[tuple[str, int]]) -> None:
        super().__init__()
        self.server = server
        self.uses = uses
        self.stopping = threading.Event()
        self.number = 1
        self.read: Names | None = None
        """The fragments read of the lease with this number, which may have been acked."""

    def go_on(self) -> "Trainer":
        """The same learner, after replay was killed."""
        after = Trainer(self.server, self.uses)
        after.number, after.read = self.number, self.read
        return after

    def run(self) -> None:
        with self.server.client(stopping=self.stopping) as client, suppress(StoppedError):
            while True:
                if self.read is None:
                    if not client.lease(self.number, steps=8, use_version=1, wait_s=0.1).chunks:
                        continue
                    self.read = names_of(client, self.number)
                client.ack(self.number)
                self.uses.update(self.read.keys())
                self.number, self.read = self.number + 1, None


def names_of(client: ReplayClient, number: int) -> Names:
    """The names of a lease's fragments."""
    return {(header.name.stream, header.name.sequence): payload for header, payload in client.read(number)}


def storm(server: Any, process: subprocess.Popen[str], round_: int, trainer: Trainer) -> Names:
    """Kills replay in the middle of many appends, leases and acks. Returns what was acked before."""
    acked: Names = {}
    many = threading.Event()

    def enough() -> None:
        if len(acked) >= ACKED_PER_ROUND:
            many.set()

    threads: list[Trainer | Writer] = [
        trainer,
        *(Writer(server, f"{round_}-{number}", acked, enough) for number in range(WRITERS)),
    ]
    for thread in threads:
        thread.start()
    many.wait()
    process.kill()
    process.wait()
    for thread in threads:
        thread.stopping.set()
    for thread in threads:
        thread.join()
    return acked


def test_every_acked_fragment_survives_kill_9_in_a_storm_and_is_used_as_often_as_it_may(server: Any) -> None:
    acked, uses = Names(), Counter[tuple[str, int]]()
    trainer = Trainer(server, uses)
    for round_ in range(ROUNDS):
        with running(server) as process:
            acked |= storm(server, process, round_, trainer)
        trainer = trainer.go_on()
    with running(server), server.client(patience_s=30.0) as client:
        for (stream, sequence), payload in acked.items():
            assert client.append([(server.header(stream, sequence, payload), payload)]).outcomes == ["duplicate"]
        open_number = trainer.number
        if trainer.read is not None:
            client.ack(open_number)
            uses.update(trainer.read.keys())
            open_number += 1
        assert trainer.number > 1
        for name, payload in read_all(client, open_number, uses):
            assert payload == acked.get(name, payload)
    assert all(uses[name] == MAX_REUSE for name in acked)
    assert max(uses.values()) == MAX_REUSE


def read_all(
    client: ReplayClient, first: int, uses: Counter[tuple[str, int]]
) -> Iterator[tuple[tuple[str, int], bytes]]:
    """Yields all that is stored, until it may not be used any more, and counts that."""
    numbers = count(first)
    for steps in (32, 1):
        while client.lease(number := next(numbers), steps=steps, use_version=1, wait_s=0.0).chunks:
            yield from (read := names_of(client, number)).items()
            client.ack(number)
            uses.update(read.keys())


def test_leases_and_uses_survive_kill_9(server: Any) -> None:
    with running(server), server.client(patience_s=30.0) as client:
        for sequence in range(2):
            client.append([(server.header("s", sequence), b"payload")])
        client.lease(1, steps=2, use_version=1, wait_s=5.0)
        client.ack(1)
        client.lease(2, steps=2, use_version=1, wait_s=5.0)
    with running(server), server.client(patience_s=30.0) as client:
        assert client.lease(3, steps=2, use_version=1, wait_s=0.0).chunks == []
        assert [chunk.uses for chunk in client.lease(2, steps=2, use_version=1, wait_s=0.0).chunks] == [1, 1]
        client.release(2)
        assert len(client.lease(4, steps=2, use_version=1, wait_s=0.0).chunks) == 2


def test_sigterm_ends_a_waiting_lease_and_replay_with_exit_code_0(server: Any) -> None:
    with running(server) as process, server.client(patience_s=0.0) as client:
        client.reserve(0, [])

        def wait() -> None:
            with suppress(UnavailableError):
                client.lease(1, steps=2, use_version=1, wait_s=600.0)

        waiting = threading.Thread(target=wait)
        waiting.start()
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
        waiting.join()
    identity = json.loads((server.run.replay / "identity.json").read_text())
    assert identity["run_id"] == "run-1"


def test_replay_role_with_an_index_of_no_shard_is_refused(server: Any) -> None:
    command = [sys.executable, "-m", "minefleet_replay", "--run-dir", str(server.run.directory), "--index", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "replay has shards 0 to 0, got --index 1" in done.stderr
