"""Stores that have stopped, with something of everything in them, and what may befall them."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from minefleet_replay.storage.open_rocksdb import open_database
from minefleet_replay.storage.rocksdb_store import Store, StoreBatch
from minefleet_replay.tools.fsck import fsck
from minefleet_replay.tools.offline_store import locked

PAYLOAD_BYTES = 6000


@dataclass(frozen=True, slots=True)
class Stopped:
    """A store that no process has open."""

    world: Any
    directory: Path

    @property
    def database(self) -> Path:
        return self.directory / "db"

    @property
    def payloads(self) -> Path:
        (file,) = (self.directory / "payloads").iterdir()
        return file

    def fsck(self) -> list[str]:
        with locked(self.directory):
            return list(fsck(self.directory, self.world.limits)["faults"])

    def change(self, put: Callable[[StoreBatch], None]) -> None:
        """Writes rows."""
        store = Store(open_database(self.database, self.world.limits.max_bytes, "serve"))
        batch = StoreBatch(store)
        put(batch)
        store.write(batch)
        store.close()

    def rows(self, family: Any) -> dict[bytes, bytes]:
        store = Store(open_database(self.database, self.world.limits.max_bytes, "look"))
        rows = dict(store.scan(family))
        store.close()
        return rows

    def open(self) -> Any:
        """Opens it as replay does; the world is closed in the end."""
        self.world.directory = self.directory
        self.world.replay = self.world.open()
        self.world.closed = False
        return self.world

    def files(self) -> dict[str, bytes]:
        """The files that a reader must not change: all but RocksDB's own log and the binding's note."""
        paths = [path for path in self.directory.rglob("*") if path.is_file()]
        left_out = ("LOG", "rocksdict-config", "lock")
        return {str(path): path.read_bytes() for path in paths if not path.name.startswith(left_out)}


def payload_of(stream: str, sequence: int) -> bytes:
    return f"{stream}/{sequence}/".encode().ljust(PAYLOAD_BYTES, b"x")


def fill(world: Any) -> None:
    """Twelve live fragments in six chunks, one of them leased, one used; three have been trained on or were stale."""
    append(world, "old", 0, version=1)
    append(world, "old", 1, version=1)
    world.hear(4)
    append(world, "late", 0, version=1)
    for stream in "abc":
        for sequence in range(4):
            append(world, stream, sequence, version=4)
    world.report(("a", 0), ("b", 0), ("b", 1))
    world.lease(1, 1)
    world.ack(1)
    world.lease(2, 1, order="oldest")
    world.replay.tick()


def append(world: Any, stream: str, sequence: int, version: int) -> None:
    world.append(stream, sequence, version, payload=payload_of(stream, sequence))


@pytest.fixture
def stopped(make_world: Callable[..., Any]) -> Stopped:
    """A store that was closed in order: its rows lie in tables."""
    world = make_world(per_chunk=2, max_reuse=2, max_staleness=2)
    fill(world)
    world.replay.close()
    world.closed = True
    return Stopped(world, world.directory)


@pytest.fixture
def kill(make_world: Callable[..., Any], tmp_path: Path) -> Callable[..., Stopped]:
    """Makes a world, does something in it, and leaves what a killed process would: rows that lie in the log."""

    def make(fill: Callable[[Any], None], **limits: Any) -> Stopped:
        world = make_world(**limits)
        fill(world)
        world.replay.transactions.store._database.cancel_all_background(True)
        shutil.copytree(world.directory, tmp_path / "killed")
        with pytest.raises(Exception, match="Shutdown in progress"):
            world.replay.close()
        world.closed = True
        return Stopped(world, tmp_path / "killed")

    return make


@pytest.fixture
def killed(kill: Callable[..., Stopped]) -> Stopped:
    """The same store, that was never closed."""
    return kill(fill, per_chunk=2, max_reuse=2, max_staleness=2)
