"""Disks that are full, damaged, slow or another's, and what a process may run short of."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry
from tests.replay_process import ReplayProcess, append
from tests.role_process import small_disk, wait_for

from minefleet.core.errors import OverloadedError, UnavailableError
from minefleet.rpc.channel import connect
from minefleet.rpc.replay_client import ReplayClient
from minefleet.v1 import episode_pb2, replay_service_pb2
from minefleet_replay.engine.counters_file import read_counters
from minefleet_replay.engine.metrics import ReplayMetrics
from minefleet_replay.engine.open_replay import open_replay
from minefleet_replay.engine.replay import Replay
from minefleet_replay.state.limits import limits_of

PAYLOAD = bytes(range(256)) * 1024
DISK_BYTES = 32 * 2**20
FRAGMENTS = 40


@pytest.fixture
def replay(tmp_path: Path) -> ReplayProcess:
    return ReplayProcess(tmp_path, max_chunks=5000, max_bytes=2**26)


def fill(replay: ReplayProcess, client: Any) -> tuple[int, OverloadedError]:
    """Appends until the disk is full: how many were acked, and the refusal."""
    acked = 0
    with pytest.raises(OverloadedError) as refusal:
        while True:
            assert append(replay, client, "s", acked, PAYLOAD) == "stored"
            acked += 1
    return acked, refusal.value


def test_a_full_disk_refuses_and_says_so_reads_and_acks_go_on_and_it_recovers_by_itself(tmp_path: Path) -> None:
    with small_disk(tmp_path / "replay", DISK_BYTES) as disk:
        replay = ReplayProcess(tmp_path, max_chunks=5000, max_bytes=2**26)
        (disk / "ballast").write_bytes(bytes(DISK_BYTES // 2))
        with replay.running(), replay.client(patience_s=0.0) as client:
            acked, refusal = fill(replay, client)
            assert "is full" in str(refusal) and refusal.retry_after_s > 0
            wait_for(lambda: replay.get("/readyz")[0] == 503)
            assert "is full" in replay.get("/readyz")[1]
            client.lease(1, steps=2, use_version=1, wait_s=0.0, order="oldest")
            assert [payload for _, payload in client.read(1)] == [PAYLOAD] * 2
            client.ack(1)
            assert replay.sample("minefleet_replay_refused_calls_total", reason="overloaded") == 1
            (disk / "ballast").unlink()
            wait_for(replay.answers)
            assert append(replay, client, "s", acked, PAYLOAD) == "stored"
        with replay.running(), replay.client() as client:
            outcomes = [append(replay, client, "s", sequence, PAYLOAD) for sequence in range(acked + 1)]
            assert outcomes == ["duplicate"] * len(outcomes)


def test_too_few_file_handles_are_refused_or_end_replay_with_a_reason_and_lose_nothing_acked(
    replay: ReplayProcess,
) -> None:
    acked = 0
    with replay.running("prlimit", "--nofile=64:64") as process:
        with ExitStack() as stack, suppress(UnavailableError, OverloadedError):
            clients = [stack.enter_context(replay.client(patience_s=0.0)) for _ in range(40)]
            for client in clients:
                with suppress(UnavailableError):
                    client.describe()
            for sequence in range(300):
                assert append(replay, clients[0], "s", sequence, PAYLOAD) == "stored"
                acked += 1
        wait_for(lambda: replay.answers() or process.poll() is not None)
        assert process.poll() is None or "Too many open files" in replay.log.read_text()
    with replay.running(), replay.client() as client:
        outcomes = [append(replay, client, "s", sequence, PAYLOAD) for sequence in range(acked)]
        assert set(outcomes) == {"duplicate"}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> ReplayProcess:
    """A replay that was killed with some fragments in the log and some in files, all synced."""
    replay = ReplayProcess(tmp_path_factory.mktemp("killed"), max_chunks=5000, max_bytes=2**26)
    with replay.running(), replay.client() as client:
        for sequence in range(FRAGMENTS // 2):
            append(replay, client, "s", sequence, PAYLOAD)
        replay.end()
    with replay.running(), replay.client() as client:
        for sequence in range(FRAGMENTS // 2, FRAGMENTS):
            append(replay, client, "s", sequence, PAYLOAD)
        wait_for(lambda: f'"appended": {FRAGMENTS}' in (replay.store / "identity.json").read_text())
    return replay


@pytest.fixture
def dead(killed: ReplayProcess, tmp_path: Path) -> ReplayProcess:
    """A copy of it."""
    shutil.copytree(killed.store, tmp_path / "replay")
    return ReplayProcess(tmp_path, max_chunks=5000, max_bytes=2**26)


def reopen(dead: ReplayProcess) -> Replay:
    return open_replay(dead.store, limits_of(dead.server.run, 0), ReplayMetrics(CollectorRegistry()))


def files(replay: ReplayProcess, kind: str) -> list[Path]:
    found = sorted(path for path in replay.store.glob(kind) if path.stat().st_size)
    assert found
    return found


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0xFF]))


def unlink(replay: ReplayProcess, kind: str) -> None:
    for path in files(replay, kind):
        path.unlink()


def flip_tables(replay: ReplayProcess) -> None:
    for path in files(replay, "db/*.sst"):
        flip(path, 30)


def behead(replay: ReplayProcess) -> None:
    """The store's identity and its `CURRENT` are gone."""
    (replay.store / "identity.json").unlink()
    unlink(replay, "db/CURRENT")


DAMAGES: dict[str, Callable[[ReplayProcess], Any]] = {
    "a flipped byte in the middle of the log": lambda replay: flip(files(replay, "db/*.log")[-1], 1000),
    "a flipped byte in every table": flip_tables,
    "no log": lambda replay: unlink(replay, "db/*.log"),
    "no tables": lambda replay: unlink(replay, "db/*.sst"),
    "no MANIFEST": lambda replay: unlink(replay, "db/MANIFEST-*"),
    "no CURRENT": lambda replay: unlink(replay, "db/CURRENT"),
    "no payloads": lambda replay: unlink(replay, "payloads/*"),
    "no database": lambda replay: shutil.rmtree(replay.store / "db"),
    "no CURRENT and no identity": behead,
    "an unreadable identity": lambda replay: (replay.store / "identity.json").write_text("{"),
}


def kept_aside(replay: ReplayProcess) -> dict[str, bytes]:
    """The files of the one store that was set aside, less RocksDB's own log."""
    (aside,) = replay.store.glob("broken-*")
    paths = [path for path in aside.rglob("*") if path.is_file() and path.name != "LOG"]
    return {str(path.relative_to(aside)): path.read_bytes() for path in paths}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_store_is_set_aside_as_it_is_and_an_empty_one_counts_on(dead: ReplayProcess, damage: str) -> None:
    DAMAGES[damage](dead)
    left = {str(path.relative_to(dead.store)) for kind in ("db/*.sst", "payloads/*") for path in dead.store.glob(kind)}
    replay = reopen(dead)
    figures = replay.stats()
    replay.close()
    assert left <= kept_aside(dead).keys()
    assert [figures[f"{name}_fragments"] for name in ("appended", "live", "corrupt")] == [FRAGMENTS, 0, FRAGMENTS]
    reopen(dead).close()
    assert len(kept_aside(dead)) > 0


def garble_manifest(replay: ReplayProcess) -> None:
    files(replay, "db/MANIFEST-*")[0].write_bytes(b"garbage" * 100)


def garble_tables(replay: ReplayProcess) -> None:
    for path in files(replay, "db/*.sst"):
        path.write_bytes(b"garbage" * 100)


@pytest.mark.parametrize("damage", [garble_manifest, garble_tables])
def test_a_process_whose_store_is_broken_goes_on_with_an_empty_one_and_its_counters(
    replay: ReplayProcess, damage: Callable[[ReplayProcess], None]
) -> None:
    def append_some(client: ReplayClient, start: int, stop: int) -> list[str]:
        return [append(replay, client, "s", sequence, PAYLOAD) for sequence in range(start, stop)]

    def report(client: ReplayClient, env_steps: int, episode: int) -> None:
        progress = replay_service_pb2.ActorProgress(actor="a", env_steps=env_steps, env_failures=2)
        client.append(episodes=[episode_pb2.EpisodeRecord(stream="s", episode=episode)], progress=progress)

    with replay.running(), replay.client() as client:
        report(client, 1000, 0)
        append_some(client, 0, 6)
        client.lease(1, steps=2, use_version=1, wait_s=0.0, order="oldest")
        assert client.ack(1) == 1000
        wait_for(lambda: read_counters(replay.store).next_episode == 1)
        wait_for(lambda: '"appended": 6' in (replay.store / "identity.json").read_text())
        replay.end()
    damage(replay)
    broken = next(replay.store.glob("db/MANIFEST-*")).read_bytes()
    with replay.running(), replay.client() as client:
        assert "replay goes on with an empty store" in replay.log.read_text()
        assert client.describe().run_id == "run-1"
        wait_for(lambda: replay.sample("minefleet_replay_env_steps") == 1000)
        assert replay.sample("minefleet_replay_ledger_fragments", bucket="trained") == 2
        assert replay.sample("minefleet_replay_ledger_fragments", bucket="corrupt") == 4
        assert append_some(client, 6, 8) == ["stored", "stored"]
        report(client, 1005, 1)
        log = client.read_episodes(1, 10)
        assert ([record.episode for record in log.episodes], log.next_cursor) == ([1], 2)
        client.lease(2, steps=2, use_version=1, wait_s=0.0, order="oldest")
        assert [header.name.sequence for header, _ in client.read(2)] == [6, 7]
        assert client.ack(2) == 1005
    assert broken in kept_aside(replay).values()


def test_replay_store_with_garbage_at_the_end_of_its_log_opens(dead: ReplayProcess) -> None:
    with files(dead, "db/*.log")[-1].open("ab") as log:
        log.write(b"\xff" * 50)
    replay = reopen(dead)
    assert replay.stats()["live_fragments"] == FRAGMENTS
    replay.close()


def test_rot_in_a_payload_costs_that_fragment_alone(dead: ReplayProcess) -> None:
    missing: list[tuple[str, int]] = []
    flip(files(dead, "payloads/*")[0], len(PAYLOAD) // 2)
    with dead.running(), dead.client() as client:
        client.lease(1, steps=FRAGMENTS, use_version=1, wait_s=0.0, order="oldest")
        found = [header.name.sequence for header, _ in client.read(1, missing=missing.append)]
        assert len(missing) == 1 and sorted([*found, missing[0][1]]) == list(range(FRAGMENTS))
        wait_for(lambda: dead.sample("minefleet_replay_ledger_fragments", bucket="corrupt") == 1)


def test_a_second_replay_on_the_same_port_is_refused_before_it_serves(replay: ReplayProcess, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with replay.running():
        other = ReplayProcess(tmp_path / "other", address=replay.server.address)
        code, log = other.refusal()
    assert code == 2
    assert f".address: cannot listen on {replay.server.address}" in log


def test_health_answers_between_the_stalls_of_the_store(tmp_path: Path) -> None:
    # Payloads do not pass through RocksDB, but long records do.
    replay = ReplayProcess(tmp_path, max_chunks=5000, max_bytes=2**22)
    stalled, answers = 0, 0

    def press(stream: str) -> int:
        refused = 0
        with replay.client(patience_s=0.0) as client:
            for number in range(150):
                records = [
                    episode_pb2.EpisodeRecord(stream=f"{stream}-{slot}", episode=number, task="t" * 60_000)
                    for slot in range(8)
                ]
                try:
                    client.append(episodes=records)
                except OverloadedError:
                    refused += 1
        return refused

    with replay.running(), connect(replay.server.address) as channel, ThreadPoolExecutor(2) as pool:
        health = health_pb2_grpc.HealthStub(channel)
        writers = [pool.submit(press, stream) for stream in "ab"]
        while not all(writer.done() for writer in writers):
            status = health.Check(health_pb2.HealthCheckRequest()).status
            assert status == health_pb2.HealthCheckResponse.SERVING
            assert replay.get("/healthz")[0] == 200
            answers += 1
        stalled = sum(writer.result() for writer in writers)
        refused = replay.sample("minefleet_replay_refused_calls_total", reason="overloaded")
    assert (stalled > 0, refused, answers > 0) == (True, stalled, True)
