"""Faults of replay that take their time: partitions, a disk that others fill, too little memory, jumping clocks."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.proxy import Proxy
from tests.replay_process import ReplayProcess, append
from tests.role_process import small_disk, wait_for

from minefleet.core.errors import FleetError, OverloadedError
from minefleet.v1 import episode_pb2

pytestmark = pytest.mark.soak

PAYLOAD = bytes(range(256)) * 1024
NAMES = 50
PARTITION_S = 30.0
DISK_BYTES = 32 * 2**20
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")


@pytest.fixture
def replay(tmp_path: Path) -> ReplayProcess:
    return ReplayProcess(tmp_path, max_chunks=5000, max_bytes=2**26)


@pytest.fixture
def proxy(replay: ReplayProcess) -> Iterator[Proxy]:
    with Proxy(replay.server.address) as proxy:
        yield proxy


def test_appends_through_a_partition_that_closes_nothing_are_stored_once(replay: ReplayProcess, proxy: Proxy) -> None:
    some, over = threading.Event(), threading.Event()

    def write(stream: str) -> None:
        with replay.client(patience_s=None) as client:
            for sequence in range(NAMES):
                append(replay, client, stream, sequence)
                some.set()

    with replay.running(), ThreadPoolExecutor(4) as pool:
        replay.server.address = proxy.address
        writers = [pool.submit(write, stream) for stream in "abcd"]
        some.wait()
        proxy.hold("up", "down")
        over.wait(PARTITION_S)
        proxy.resume()
        for writer in writers:
            writer.result()
        assert replay.sample("minefleet_replay_appended_fragments_total", outcome="stored") == 4 * NAMES


def test_a_slow_line_misses_no_deadline_and_costs_no_memory(replay: ReplayProcess, proxy: Proxy) -> None:
    proxy.delay_s, proxy.bytes_per_s = 0.2, 1e6
    payload, rss_bytes = os.urandom(2 * 2**20), list[int]()

    def write(stream: str) -> list[str]:
        with replay.client(patience_s=None) as client:
            return [append(replay, client, stream, sequence, payload) for sequence in range(6)]

    with replay.running(), ThreadPoolExecutor(4) as pool:
        replay.server.address = proxy.address
        writers = [pool.submit(write, stream) for stream in "abcd"]
        beat = threading.Event()
        while not all(writer.done() for writer in writers):
            beat.wait(0.5)
            rss_bytes.append(replay.rss_bytes())
        assert [writer.result() for writer in writers] == [["stored"] * 6] * 4
    half = len(rss_bytes) // 2
    assert max(rss_bytes[half:]) < max(rss_bytes[:half]) + 2**24


def test_a_disk_that_others_fill_to_the_last_byte_stops_writes_alone_and_for_as_long(tmp_path: Path) -> None:
    with small_disk(tmp_path / "replay", DISK_BYTES) as disk:
        replay = ReplayProcess(tmp_path, max_chunks=5000, max_bytes=2**26)
        with replay.running(), replay.client(patience_s=0.0) as client:
            for sequence in range(20):
                append(replay, client, "s", sequence, PAYLOAD)
            client.lease(1, steps=2, use_version=1, wait_s=0.0, order="oldest")
            fill(disk / "ballast")
            with pytest.raises(OverloadedError):
                for episode in range(1000):
                    report(client, episode)
            wait_for(lambda: replay.get("/readyz")[0] == 503)
            assert [payload for _, payload in client.read(1)] == [PAYLOAD] * 2
            (disk / "ballast").unlink()
            wait_for(replay.answers)
            client.ack(1)
            for sequence in range(20, 40):
                append(replay, client, "s", sequence, PAYLOAD)
            assert "appended" in (disk / "identity.json").read_text()
        with replay.running(), replay.client() as client:
            assert [append(replay, client, "s", sequence, PAYLOAD) for sequence in range(40)] == ["duplicate"] * 40


def fill(path: Path) -> None:
    """Leaves no byte free."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(2**12))


def report(client: Any, episode: int) -> None:
    client.append(episodes=[episode_pb2.EpisodeRecord(stream="s", episode=episode, task="t" * 1000)])


def test_too_little_memory_refuses_or_ends_replay_and_loses_nothing_acked(replay: ReplayProcess) -> None:
    large, acked = bytes(24 * 2**20), list[str]()

    def write(stream: str) -> None:
        with replay.client(patience_s=0.0) as client, suppress(FleetError):
            append(replay, client, stream, 0, large)
            acked.append(stream)

    with replay.running("prlimit", f"--as={900 * 2**20}") as process:
        with ThreadPoolExecutor(24) as pool:
            for number in range(24):
                pool.submit(write, f"s{number}")
        wait_for(lambda: replay.answers() or process.poll() is not None)
    with replay.running(), replay.client() as client:
        assert {append(replay, client, stream, 0, large) for stream in acked} <= {"duplicate"}


def is_up_for(client: Any, seconds: float) -> bool:
    return bool(client.describe().uptime.ToTimedelta().total_seconds() > seconds)


def test_replay_is_unaffected_by_clocks_that_jump(replay: ReplayProcess, tmp_path: Path) -> None:
    if not FAKETIME.exists():
        pytest.skip("libfaketime is not installed; Debian's package faketime brings it")
    offset = tmp_path / "offset"
    offset.write_text("+0")
    faked = {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    with replay.running(env={**os.environ, **faked}), replay.client(patience_s=0.0) as client:
        assert client.reserve(1, [("granted", 0)]).granted == [True]
        for sequence in range(4):
            append(replay, client, "s", sequence)
        client.lease(1, steps=2, use_version=1, wait_s=0.0)
        for jump in ("+1h", "-1h", "+0"):
            offset.write_text(jump)
            ticks = client.describe().uptime.ToTimedelta().total_seconds() + 3
            wait_for(partial(is_up_for, client, ticks))
            figures = client.describe().stats
            assert (figures["open_leases"], figures["live_fragments"], figures["granted_chunks"]) == (1, 2, 1)
            assert append(replay, client, "s", 0) == "duplicate"
        client.ack(1)
        assert len(client.lease(2, steps=2, use_version=1, wait_s=0.0).chunks) == 2
