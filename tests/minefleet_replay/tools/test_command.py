"""`minefleet replay` on a run: it asks replay while that runs, and reads its store when it does not."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from minefleet.cli import main

Command = Callable[..., "Done"]


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a command."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def shard(self) -> dict[str, Any]:
        (shard,) = json.loads(self.stdout)["shards"]
        return dict(shard)


@pytest.fixture
def command(server: Any, capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs `minefleet replay` on the server's run; the tools that it starts are processes."""

    def run(*arguments: str) -> Done:
        capfd.readouterr()
        try:
            code = main(["replay", *arguments, str(server.run.directory)])
        except SystemExit as end:
            code = int(str(end.code))
        return Done(code, *capfd.readouterr())

    return run


@pytest.fixture
def server(make_server: Callable[..., Any]) -> Any:
    """A server of a run that is written."""
    server = make_server(max_reuse=1)
    server.run.write()
    return server


def use(server: Any) -> None:
    with server.client() as client:
        client.append([(server.header("s", sequence), b"payload") for sequence in range(3)])
        client.lease(1, steps=2, use_version=1, wait_s=5.0, order="oldest")
        client.ack(1)


def test_a_running_replay_is_asked_and_a_stopped_one_read(server: Any, command: Command) -> None:
    with server.serve() as replay:
        use(server)
        server.status.set_stats(replay.stats())
        online = command("stats", "--json").shard
        why_online = command("why-dropped", "--json").shard
    offline, why_offline = (command(name, "--json").shard for name in ("stats", "why-dropped"))
    assert [one["online"] for one in (online, why_online, offline, why_offline)] == [True, True, False, False]
    assert online["balanced"] and offline["balanced"]
    shared = online.keys() & offline.keys() - {"online", "disk_bytes", "stored_bytes", "stored_raw_bytes"}
    assert {name: online[name] for name in shared} == {name: offline[name] for name in shared}
    assert why_online["departures"] == why_offline["departures"] != []


def test_a_running_replay_is_not_verified_or_exported(server: Any, command: Command, tmp_path: Path) -> None:
    with server.serve():
        use(server)
        for arguments in (["fsck"], ["export", str(tmp_path / "out")]):
            done = command(*arguments)
            assert (done.returncode, done.stdout) == (1, "")
            assert "is in use by another replay process; stop its run first" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_run_without_a_store_is_said_to_have_none(command: Command) -> None:
    for name in ("stats", "fsck"):
        done = command(name)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("minefleet: there is no store in ") and done.stderr.count("\n") == 1


def test_why_dropped_of_an_unknown_stream_fails_in_one_line(server: Any, command: Command) -> None:
    with server.serve():
        use(server)
        online = command("why-dropped", "--stream", "z")
    offline = command("why-dropped", "--stream", "z")
    for done in (online, offline):
        assert (done.returncode, done.stdout) == (1, "")
        assert "knows nothing of stream z" in done.stderr and done.stderr.count("\n") == 1


def test_replay_command_shows_what_it_finds(server: Any, command: Command, tmp_path: Path) -> None:
    with server.serve():
        use(server)
    assert "balanced" in command("stats").stdout
    assert "trained" in command("why-dropped").stdout
    assert "sound" in command("fsck").stdout
    (file,) = (server.run.replay / "payloads").iterdir()
    file.unlink()
    found = command("fsck")
    assert found.returncode == 1 and "payload: fragment s/2" in found.stdout
    assert "0 fragments of 0 steps" in command("export", str(tmp_path / "out")).stdout
