"""RocksDB: families of rows, atomic batches, and what a write survives.

A write survives `kill -9` once `write` returns, and power loss once `sync` does. `sync` shares one fsync among all who
wait for it. RocksDB runs under the GIL, so a write that would stall is refused instead, or it would stall the process.

<directory>/
├── db/             RocksDB's own
├── payloads/       the payloads of the fragments that its rows name
├── broken-*/       a store that did not open, as it was found
├── identity.json   whose store it is
├── counters.json   what was counted, for when the rest is lost
└── lock            held by the process that has the store open
"""

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal, get_args

from rocksdict import Rdict, ReadOptions, WriteBatch, WriteOptions

from minefleet.core.errors import CorruptError, FleetError, OverloadedError, UnavailableError

logger = logging.getLogger(__name__)

Family = Literal["meta", "uses", "names", "leases", "episodes", "drops", "system"]
"""
meta      append number → what a fragment is, where its payload lies, and its header
uses      chunk id → acked uses, where there are any
names     stream → what it has sent, ever
leases    lease → its chunks, for the current epoch
episodes  number → episode record
drops     append number → why fragments left
system    the ledger, where the run stands, actors' progress
"""

FAMILIES: tuple[Family, ...] = get_args(Family)


DATABASE = "db"

SIGNS_OF_DAMAGE = (
    "Corruption",
    "create_if_missing is false",
    "No such file or directory",
    "Column families not",
    "Column family not",
    "Input/output error",
)

STALL_RETRY_S = 0.02


class DiskFullError(OverloadedError):
    """The disk has no room; nothing was written."""


class StorageError(UnavailableError):
    """RocksDB has met an error that it recovers from only when it is opened again; nothing that was acked is lost."""


class StoreBatch:
    """Rows that are written together or not at all."""

    def __init__(self, store: "Store") -> None:
        self.rows = WriteBatch(raw_mode=True)
        self._handles = store.handles

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """Sets a row."""
        self.rows.put(key, value, self._handles[family])

    def delete(self, family: Family, key: bytes) -> None:
        """Removes a row."""
        self.rows.delete(key, self._handles[family])

    def delete_range(self, family: Family, start: bytes, stop: bytes) -> None:
        """Removes the rows of keys in [start, stop)."""
        self.rows.delete_range(start, stop, self._handles[family])


class Store:
    """An open database. One thread writes at a time; any may read and sync."""

    def __init__(
        self, database: Rdict, lock: BinaryIO | None = None, *, directory: Path | None = None, reserve_bytes: int = 0
    ) -> None:
        """Takes an open database over.

        Args:
            database: Of the store.
            lock: Let go when the store is closed.
            directory: Whose disk shall have room.
            reserve_bytes: Room on that disk that payloads must leave.
        """
        self._database = database
        self._lock = lock
        self._directory = directory
        self._reserve_bytes = reserve_bytes
        self._largest_bytes = 0
        """Of the payloads so far."""
        self._families = {family: database.get_column_family(family) for family in FAMILIES}
        self.handles = {family: database.get_column_family_handle(family) for family in FAMILIES}
        self._options = WriteOptions()
        self._options.no_slowdown = True
        self._syncing = threading.Lock()
        self._refusal = ""
        """Why the last write was refused, if the disk had no room for it."""
        self.failure = ""
        """Why nothing can be written any more, if so."""
        self.written = 0
        self.synced = 0

    def write(self, batch: StoreBatch) -> int:
        """Writes a batch. Returns its number, for `sync`.

        Raises:
            OverloadedError: If the disk is full or RocksDB would stall; nothing was written.
            StorageError: If it fails otherwise.
        """
        try:
            with translated_storage():
                self._database.write(batch.rows, self._options)
        except DiskFullError as error:
            self._refusal = str(error)
            raise
        except StorageError as error:
            self.failure = str(error)
            raise
        self._refusal = ""
        self.written += 1
        return self.written

    def sync(self, number: int) -> None:
        """Returns once write `number` survives power loss.

        Raises:
            OverloadedError: If the disk is full.
        """
        with self._syncing:
            if self.synced < number:
                # RocksDB resumes by itself once there is room again, but not after a flush of the log that it cannot
                # go on with.
                if self._refusal:
                    raise DiskFullError(self._refusal)
                written = self.written
                with translated_storage():
                    self._database.flush_wal(True)
                self.synced = written

    def get(self, family: Family, key: bytes) -> bytes | None:
        """Reads a row."""
        with translated_storage():
            value: bytes | None = self._families[family].get(key)
        return value

    def get_many(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        """Reads rows without holding up other threads."""
        with translated_storage():
            return list(self._families[family].get(list(keys)) or ())

    def scan(self, family: Family, start: bytes = b"", stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yields the rows of keys in [start, stop), by key."""
        options = ReadOptions()
        if stop is not None:
            options.set_iterate_upper_bound(stop)
        with translated_storage():
            rows = self._families[family].iter(options)
            rows.seek(start)
        while rows.valid():
            yield rows.key(), rows.value()
            rows.next()
        # An iterator that meets corruption ends as if there were no more rows; only its status shows it.
        with translated_storage():
            rows.status()

    def last_key(self, family: Family) -> bytes | None:
        """The highest key of a family."""
        with translated_storage():
            rows = self._families[family].iter()
            rows.seek_to_last()
            rows.status()
        key: bytes | None = rows.key() if rows.valid() else None
        return key

    @property
    def is_refusing(self) -> bool:
        """Whether the disk had no room for the last write."""
        return bool(self._refusal)

    def shortage(self, payload_bytes: int = 0) -> str | None:
        """Warns when the largest payload would leave less room than leases, Acks and the flush of memory may need."""
        self._largest_bytes = max(self._largest_bytes, payload_bytes)
        if self._refusal or self._directory is None:
            return self._refusal or None
        free_bytes = self._free_bytes(self._directory)
        if free_bytes >= self._reserve_bytes + self._largest_bytes:
            return None
        return f"the disk of {self._directory} is full: {free_bytes} bytes are free, {self._reserve_bytes} are reserved"

    @staticmethod
    def _free_bytes(directory: Path) -> int:
        disk = os.statvfs(directory)
        return disk.f_bavail * disk.f_frsize

    def property(self, family: Family, name: str) -> int:
        """One of RocksDB's own properties."""
        return int(self._families[family].property_int_value(f"rocksdb.{name}") or 0)

    def close(self) -> None:
        """Flushes and closes. The database stays open while anything refers to it, so all references go."""
        try:
            self.sync(self.written)
            self._families.clear()
            self.handles.clear()
            self._database.close()
        finally:
            if self._lock is not None:
                self._lock.close()


@contextmanager
def translated_storage() -> Iterator[None]:
    """Turns what RocksDB raises into our errors; what it does not name stays as it is."""
    try:
        yield
    except FleetError:
        raise
    except Exception as error:
        # rocksdict raises nothing narrower: the text says what it is.
        _raise_ours(error)
        raise


def _raise_ours(error: Exception) -> None:
    """Raises what an error means; returns when it is none that we know.

    What is raised is held by no name here: an error that holds itself keeps iterators alive, and they the database.
    """
    text = str(error)
    if "stall" in text.lower() or text.startswith("Result incomplete"):
        raise OverloadedError(f"storage is busy: {text}", STALL_RETRY_S) from error
    if "No space left" in text:
        raise DiskFullError(f"the disk is full: {text}") from error
    if any(sign in text for sign in SIGNS_OF_DAMAGE):
        raise CorruptError(f"storage is damaged: {text}") from error
    if text.startswith("IO error"):
        raise StorageError(f"storage has failed: {text}") from error
