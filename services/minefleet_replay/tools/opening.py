"""Opens stores to look into them. A store that is looked at is locked, so that replay does not start meanwhile."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rocksdict import Rdict

from minefleet.errors import ConfigError, CorruptError
from minefleet_replay.identity import FILE
from minefleet_replay.opening import PAYLOADS
from minefleet_replay.payloads import PayloadLog
from minefleet_replay.store import DATABASE, Store, lock_store, open_database, repair_database

RESCUE = "db.rescue"
"""A copy of a database that does not open, for RocksDB to repair; files that never change are linked, not copied."""

UNCHANGING = ".sst"
LEFT_OUT = ("LOCK", "LOG")


@dataclass(frozen=True, slots=True)
class Opened:
    """A store that is looked at."""

    store: Store
    damage: tuple[str, ...]
    """What is wrong with the database as a whole, and was worked around."""


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Holds a store against other processes.

    Raises:
        ConfigError: If there is none.
        ConflictError: If replay or another tool has it open.
    """
    if not any((directory / name).exists() for name in (DATABASE, FILE)):
        raise ConfigError(f"there is no store in {directory}")
    with closing(lock_store(directory)):
        yield


@contextmanager
def looking(path: Path, max_bytes: int) -> Iterator[Store]:
    """Opens the database of a store that is locked and sound, to read it.

    Raises:
        CorruptError: If it does not open.
    """
    with closing(Store(open_database(path, max_bytes, "look"))) as store:
        yield store


@contextmanager
def salvaging(directory: Path, max_bytes: int, *, rescue: bool) -> Iterator[Opened]:
    """Opens a store that is locked and may be damaged, to read what there is.

    Args:
        directory: Of the store.
        max_bytes: Of the run's configuration.
        rescue: Whether to repair a copy of a database that does not open at all.

    Raises:
        CorruptError: If nothing helps.
    """
    try:
        opened = _open_somehow(directory, max_bytes, rescue)
        with closing(opened.store):
            yield opened
    finally:
        shutil.rmtree(directory / RESCUE, ignore_errors=True)


def _open_somehow(directory: Path, max_bytes: int, rescue: bool) -> Opened:
    path, damage = directory / DATABASE, list[str]()
    ways: list[Callable[[], Rdict]] = [partial(open_database, path, max_bytes, "look")]
    ways += [partial(open_database, path, max_bytes, "salvage")]
    ways += [partial(_rescued, directory, max_bytes)] if rescue else []
    for way in ways:
        try:
            return Opened(Store(way()), tuple(damage))
        except CorruptError as error:
            damage.append(str(error))
    raise CorruptError(f"the database {path} does not open: {damage[-1]}")


def _rescued(directory: Path, max_bytes: int) -> Rdict:
    """Opens a copy of a database, after RocksDB has repaired it where nothing less helps."""
    copy = directory / RESCUE
    _copy(directory / DATABASE, copy)
    _point_to_manifest(copy)
    try:
        return open_database(copy, max_bytes, "salvage")
    except CorruptError:
        repair_database(copy)
        return open_database(copy, max_bytes, "rebuild")


def _copy(source: Path, target: Path) -> None:
    if not source.is_dir():
        raise CorruptError(f"{source} is missing; a repair that was cut short leaves it in damaged-*/db, move it back")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for path in source.iterdir():
        if path.is_file() and not path.name.startswith(LEFT_OUT):
            (link if path.suffix == UNCHANGING else shutil.copyfile)(path, target / path.name)


def link(path: Path, target: Path) -> None:
    """Lets a file that never changes have another name, or copies it where that cannot be."""
    with suppress(OSError):
        target.hardlink_to(path)
        return
    shutil.copyfile(path, target)


def payloads_in(directory: Path) -> PayloadLog:
    """The payloads of a store, to be read only."""
    return PayloadLog(directory / PAYLOADS, file_bytes=0, sizes={})


def _point_to_manifest(path: Path) -> None:
    """Lets CURRENT name the newest manifest there is."""
    manifests = sorted(path.glob("MANIFEST-*"))
    if manifests:
        (path / "CURRENT").write_text(f"{manifests[-1].name}\n")
