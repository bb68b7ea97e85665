"""`identity.json`: whose store it is, readable without RocksDB."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from minefleet.core.atomic_files import write_whole
from minefleet.core.errors import ContractError, CorruptError
from minefleet_runtime.retryable_resource_errors import overloaded_when_full

FILE = "identity.json"

FORMAT = 4
"""Format of the store; others are refused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardIdentity:
    """The owner of a store."""

    run_id: str = ""
    """Empty until a first call names the run."""
    format: int = FORMAT
    appended: int = 0
    """Fragments that had been appended, and synced to disk, when this was written: a store with fewer has lost some."""
    shard: int = 0
    shards: int = 1
    """No two shards hold the same fragment, so neither number may change."""


def read_identity(directory: Path) -> ShardIdentity | None:
    """Reads a store's identity; None where there is no store.

    Raises:
        CorruptError: If it is unreadable.
        ContractError: If it is of another format.
    """
    path = directory / FILE
    if not path.exists():
        return None
    try:
        identity = ShardIdentity(**json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise CorruptError(f"{path} is unreadable: {error}") from error
    if identity.format != FORMAT:
        raise ContractError(f"{directory} has format {identity.format}, this version reads format {FORMAT}")
    return identity


def write_identity(directory: Path, identity: ShardIdentity) -> None:
    """Writes a store's identity whole and durably.

    Raises:
        OverloadedError: If the disk is full or too many files are open; the former one stays.
    """
    with overloaded_when_full():
        write_whole(directory / FILE, json.dumps(asdict(identity)))
