"""Opens stores to look into them. A store that is looked at is locked, so that replay does not start meanwhile."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from minefleet.core.errors import ConfigError
from minefleet_replay.engine.open_replay import PAYLOADS
from minefleet_replay.storage.identity import FILE
from minefleet_replay.storage.open_rocksdb import lock_store, open_database
from minefleet_replay.storage.payload_log import PayloadLog
from minefleet_replay.storage.rocksdb_store import DATABASE, Store


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


def payloads_in(directory: Path) -> PayloadLog:
    """The payloads of a store, to be read only."""
    return PayloadLog(directory / PAYLOADS, file_bytes=0, sizes={})
