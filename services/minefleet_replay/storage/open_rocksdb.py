"""Opens the RocksDB database of a store, with its options, for one process alone."""

import fcntl
from pathlib import Path
from typing import BinaryIO, Literal

from rocksdict import AccessType, DBCompressionType, DBRecoveryMode, Options, Rdict

from minefleet.core.errors import ConflictError
from minefleet_replay.state.disk_budget_split import BUFFERS, EVENT_LOGS, DiskBudget
from minefleet_replay.storage.rocksdb_store import DATABASE, FAMILIES, Store, translated_storage

Purpose = Literal["serve", "create", "look"]
"""
serve     refuses a log that is damaged before its end
create    as `serve`, and makes what is not there
look      as `serve`, and writes nothing
"""
RESERVED_LOGS = 2
"""Room that payloads leave on the disk, in full logs: one more log, and the flush of what it holds."""


def open_store(directory: Path, *, max_bytes: int, fresh: bool) -> Store:
    """Opens the database of a store, and makes it where `fresh`.

    Raises:
        ConflictError: If another process has it open.
        CorruptError: If it is damaged beyond a torn end of its log.
    """
    directory.mkdir(parents=True, exist_ok=True)
    lock = lock_store(directory)
    try:
        database = open_database(directory / DATABASE, max_bytes, "create" if fresh else "serve")
        return Store(database, lock, directory=directory, reserve_bytes=RESERVED_LOGS * DiskBudget(max_bytes).log_bytes)
    except Exception:
        lock.close()
        raise


def has_remains(directory: Path) -> bool:
    """Whether there are rows of a database that has lost its `CURRENT`: making a new one there would bury them."""
    remains = (path for kind in ("db/*.log", "db/*.sst", "payloads/*") for path in directory.glob(kind))
    return not (directory / DATABASE / "CURRENT").exists() and any(path.stat().st_size for path in remains)


def open_database(path: Path, max_bytes: int, purpose: Purpose) -> Rdict:
    """Opens the database of a store that this process has locked.

    Raises:
        CorruptError: If it is damaged more than the purpose bears.
    """
    options = _options(DiskBudget(max_bytes), purpose)
    families: dict[str, Options] = dict.fromkeys(FAMILIES, options)
    access = AccessType.read_only() if purpose == "look" else AccessType.read_write()
    with translated_storage():
        return Rdict(str(path), options, column_families=families, access_type=access)


def lock_store(directory: Path) -> BinaryIO:
    """Takes the store's own lock: RocksDB's is lost when any file handle on it is closed in this process.

    Raises:
        ConflictError: If another process has it.
    """
    lock = (directory / "lock").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise ConflictError(f"the store {directory} is in use by another replay process; stop its run first") from error
    return lock


def _options(budget: DiskBudget, purpose: Purpose) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(purpose == "create")
    options.create_missing_column_families(purpose == "create")
    options.set_write_buffer_size(budget.buffer_bytes)
    options.set_max_write_buffer_number(BUFFERS)
    options.set_max_total_wal_size(budget.log_bytes)
    options.set_max_background_jobs(2)
    options.set_max_open_files(512)
    options.set_keep_log_file_num(EVENT_LOGS)
    options.set_max_log_file_size(budget.event_log_bytes)
    options.set_max_manifest_file_size(budget.manifest_bytes)
    options.set_paranoid_checks(True)
    # The default mode drops all that follows a damaged record in the middle of the log, without a word.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_compression_type(DBCompressionType.lz4())
    return options
