"""An Append survives networks: partitions, lost answers, slow lines, resets, noise."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.proxy import Proxy
from tests.replay_process import ReplayProcess
from tests.role_process import wait_for

from minefleet.core.errors import UnavailableError

PAYLOAD = bytes(range(256)) * 256
LARGE = bytes(16 * 2**20)
NAMES = 20
UPLOADS = 24


@pytest.fixture
def server(make_server: Callable[..., Any]) -> Iterator[Any]:
    server = make_server(max_staleness=9, max_reuse=1)
    with server.serve():
        yield server


@pytest.fixture
def proxy(server: Any) -> Iterator[Proxy]:
    with Proxy(server.address) as proxy:
        yield proxy


def append(server: Any, client: Any, stream: str, sequence: int, payload: bytes = PAYLOAD) -> str:
    (outcome,) = client.append([(server.header(stream, sequence, payload), payload)]).outcomes
    return str(outcome)


def appended(server: Any, outcome: str) -> float:
    return float(server.count("appended_fragments_total", outcome=outcome))


def test_appends_through_a_partition_and_a_reset_are_stored_once(server: Any, proxy: Proxy) -> None:
    address, server.address = server.address, proxy.address
    some = threading.Event()

    def write(stream: str) -> None:
        with server.client() as client:
            for sequence in range(NAMES):
                append(server, client, stream, sequence)
                some.set()

    with ThreadPoolExecutor(3) as pool:
        writers = [pool.submit(write, stream) for stream in "abc"]
        some.wait()
        proxy.hold("up", "down")
        proxy.reset()
        proxy.resume()
    for writer in writers:
        writer.result()
    server.address = address
    assert appended(server, "stored") == 3 * NAMES


def test_a_fragment_whose_answer_was_lost_is_recognised_when_it_is_sent_again(server: Any, proxy: Proxy) -> None:
    server.address = proxy.address
    with server.client() as client, ThreadPoolExecutor(1) as pool:
        append(server, client, "s", 0)
        proxy.hold("down")
        answer = pool.submit(append, server, client, "s", 1)
        wait_for(lambda: appended(server, "stored") == 2)
        proxy.reset()
        proxy.resume()
        assert answer.result() == "duplicate"
    assert (appended(server, "stored"), appended(server, "duplicate")) == (2, 1)


def test_a_slow_line_misses_no_deadline(server: Any, proxy: Proxy) -> None:
    server.address = proxy.address
    proxy.delay_s, proxy.bytes_per_s = 0.1, 1e6

    def write(stream: str) -> None:
        with server.client() as client:
            for sequence in range(2):
                append(server, client, stream, sequence)

    with ThreadPoolExecutor(4) as pool:
        for writer in [pool.submit(write, stream) for stream in "abcd"]:
            writer.result()
    assert (appended(server, "stored"), appended(server, "duplicate")) == (8, 0)


def test_an_upload_that_is_reset_stores_nothing_and_frees_its_memory(tmp_path: Path) -> None:
    replay = ReplayProcess(tmp_path, max_bytes=2**28)
    server = replay.server
    with replay.running(), Proxy(server.address) as proxy:
        server.address = proxy.address
        rss_bytes = []
        for _ in range(UPLOADS):
            proxy.reset_after_bytes = len(LARGE) // 2
            with server.client(patience_s=0.0) as client, pytest.raises(UnavailableError):
                append(server, client, "s", 0, LARGE)
            rss_bytes.append(replay.rss_bytes())
        proxy.reset_after_bytes = 0
        with replay.client() as client:
            assert append(server, client, "s", 0, LARGE) == "stored"
        assert replay.sample("minefleet_replay_appended_fragments_total") == 1
    # The allocator may keep one upload for each thread that took one; halves that were lost would be twice as much.
    assert rss_bytes[-1] < rss_bytes[UPLOADS // 2] + UPLOADS // 2 * len(LARGE) // 4
