"""Replay and its callers as processes that are killed, frozen and asked to stop at the worst moment."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.proxy import Proxy
from tests.replay_process import ReplayProcess, append
from tests.role_process import wait_for

from minefleet.core.errors import UnavailableError
from minefleet.rpc.channel import connect
from minefleet.rpc.retrier import StoppedError

FROZEN_LEARNER = Path(__file__).with_name("frozen_learner.py")


@pytest.fixture
def replay(tmp_path: Path) -> Iterator[ReplayProcess]:
    yield ReplayProcess(tmp_path, max_chunks=5000, max_bytes=2**28)


@contextmanager
def answer_lost(
    replay: ReplayProcess, method: str, call: Callable[[Any], Any], prepare: Callable[[Any], Any] = lambda _: None
) -> Iterator[Any]:
    """Kills replay after it has done what `call` asks and before the answer arrives, and starts it again.

    Yields the answer to the repeated call.
    """
    address = replay.server.address
    with Proxy(address) as proxy, ThreadPoolExecutor(1) as pool:
        with replay.running(), replay.client() as direct:
            prepare(direct)
            replay.server.address = proxy.address
            client = replay.client()
            client.describe()
            proxy.hold("down")
            answer = pool.submit(call, client)
            wait_for(lambda: replay.sample("grpc_server_handled_total", grpc_method=method, grpc_code="OK") >= 1)
        proxy.reset()
        proxy.resume()
        replay.server.address = address
        with replay.running(), client:
            yield answer.result()


def append_two(replay: ReplayProcess, client: Any) -> None:
    for sequence in range(2):
        append(replay, client, "s", sequence)


def test_a_lease_whose_answer_died_with_replay_is_charged_once_and_answered_again(replay: ReplayProcess) -> None:
    def lease(client: Any) -> list[str]:
        return [chunk.name.stream for chunk in client.lease(1, steps=2, use_version=1, wait_s=0.0).chunks]

    with answer_lost(replay, "Lease", lease, partial(append_two, replay)) as answer, replay.client() as other:
        assert answer == ["s", "s"]
        assert other.lease(2, steps=2, use_version=1, wait_s=0.0).chunks == []
        other.position = replace(other.position, epoch=2, version=2, resumed_version=1, first_version=2)
        assert [chunk.uses for chunk in other.lease(1, steps=2, use_version=2, wait_s=0.0).chunks] == [0, 0]


def test_an_append_whose_answer_died_with_replay_is_there(replay: ReplayProcess) -> None:
    with answer_lost(replay, "Append", lambda client: append(replay, client, "s", 0)) as answer:
        assert answer == "duplicate"


def test_an_ack_whose_answer_died_with_replay_is_counted_once(replay: ReplayProcess) -> None:
    def prepare(client: Any) -> None:
        append_two(replay, client)
        client.lease(1, steps=2, use_version=1, wait_s=0.0)

    with answer_lost(replay, "Ack", lambda client: client.ack(1), prepare) as answer, replay.client() as client:
        assert answer == 0
        wait_for(lambda: client.describe().stats["trained_fragments"] == 2)


def test_a_learner_that_was_frozen_while_another_took_over_is_refused_everywhere(replay: ReplayProcess) -> None:
    large = bytes(range(256)) * 2**17
    with replay.running(), replay.client() as client:
        append(replay, client, "s", 0)
        append(replay, client, "s", 1, large)
        command = [sys.executable, str(FROZEN_LEARNER), replay.server.address, client.position.run_id]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as frozen:
            assert frozen.stdin is not None and frozen.stdout is not None
            assert frozen.stdout.readline() == "reading\n"
            frozen.send_signal(signal.SIGSTOP)
            client.position = replace(client.position, epoch=2, version=1, resumed_version=1, first_version=1)
            client.lease(1, steps=2, use_version=1, wait_s=0.0)
            frozen.send_signal(signal.SIGCONT)
            frozen.stdin.write("go on\n")
            frozen.stdin.flush()
            outcomes = json.loads(frozen.stdout.readline())
        assert set(outcomes.values()) == {"FencedError"}, outcomes
        wait_for(lambda: client.describe().stats["open_leases"] == 1)
        assert sum(len(payload) for _, payload in client.read(1)) > len(large)
        client.ack(1)


def test_replay_that_was_down_stores_a_fragment_that_is_sent_again_once(replay: ReplayProcess) -> None:
    written, waiting = threading.Barrier(3), threading.Barrier(3)

    def write(stream: str) -> list[str]:
        with replay.client(report=lambda message: message and waiting.wait()) as client:
            outcomes = [append(replay, client, stream, sequence) for sequence in range(10)]
            written.wait()
            return outcomes + [append(replay, client, stream, sequence) for sequence in range(20)]

    with ThreadPoolExecutor(2) as pool:
        with replay.running() as process:
            writers = [pool.submit(write, stream) for stream in "ab"]
            wait_for(lambda: written.n_waiting == 2)
            process.kill()
            process.wait()
            written.wait()
            waiting.wait()
        with replay.running():
            for writer in writers:
                assert writer.result() == ["stored"] * 10 + ["duplicate"] * 10 + ["stored"] * 10


def test_sigterm_under_load_says_so_first_loses_nothing_acked_and_ends_with_exit_code_0(replay: ReplayProcess) -> None:
    acked: list[tuple[str, int]] = []
    many, stopping = threading.Event(), threading.Event()

    def write(stream: str) -> None:
        with replay.client(patience_s=0.0, stopping=stopping) as client, suppress(UnavailableError, StoppedError):
            for sequence in range(100_000):
                append(replay, client, stream, sequence)
                acked.append((stream, sequence))
                if len(acked) > 100:
                    many.set()

    with ThreadPoolExecutor(5) as pool:
        with replay.running(), connect(replay.server.address) as channel:
            watched = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            states = [next(watched).status]
            writers = [pool.submit(write, stream) for stream in "abcd"]
            many.wait()
            ending = pool.submit(replay.end)
            states.append(next(watched).status)
            watched.cancel()
            code = ending.result()
            stopping.set()
        for writer in writers:
            writer.result()
    assert code == 0
    assert states == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]
    with replay.running(), replay.client() as client:
        assert {append(replay, client, *name) for name in acked} == {"duplicate"}
