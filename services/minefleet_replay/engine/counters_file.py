"""`counters.json`: what replay has counted, kept outside RocksDB so that a store that begins anew counts on.

It holds the rows of the family `system`, as of about a second ago, and the end of the log of episodes.
"""

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from minefleet.core.atomic_files import write_whole
from minefleet.core.errors import CorruptError
from minefleet_replay.state.ledger_totals import Ledger
from minefleet_replay.storage.rocksdb_store import Store, StoreBatch
from minefleet_replay.storage.row_codec import LEDGER, UNEXPLAINED, number_key
from minefleet_runtime.retryable_resource_errors import overloaded_when_full

logger = logging.getLogger(__name__)

FILE = "counters.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """Counters that must not go back when the rest of a store is lost."""

    next_episode: int = 0
    """Number of the next record in the log of episodes."""
    system: dict[bytes, bytes] = field(default_factory=dict)
    """Rows of `system`: the ledger, where the run stands, actors' progress."""


def counters_of(store: Store, next_episode: int) -> Counters:
    """Copies the counters of a store to which nobody writes meanwhile."""
    return Counters(next_episode=next_episode, system=dict(store.scan("system")))


def write_counters(directory: Path, counters: Counters) -> None:
    """Writes them whole and durably.

    Raises:
        OverloadedError: If the disk is full or too many files are open; the former ones stay.
    """
    rows = {key.decode(): row.hex() for key, row in counters.system.items()}
    content = {"next_episode": counters.next_episode, "system": rows}
    with overloaded_when_full():
        write_whole(directory / FILE, json.dumps(content | {"checksum": _checksum(content)}))


def read_counters(directory: Path) -> Counters:
    """Reads them. They are all zero where there are none, or where they are damaged, which is logged."""
    path = directory / FILE
    try:
        content = json.loads(path.read_text())
        if content.pop("checksum") != _checksum(content):
            raise CorruptError("its bytes do not match their checksum")
        rows = {key.encode(): bytes.fromhex(row) for key, row in content["system"].items()}
        return Counters(next_episode=content["next_episode"], system=rows)
    except FileNotFoundError:
        return Counters()
    except (CorruptError, ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("%s is unreadable, and will be written anew: %r", path, error)
        return Counters()


def begin_from(counters: Counters, store: Store) -> None:
    """Makes an empty store continue the counters. The fragments that the last one held count as corrupt."""
    if not counters.system:
        return
    last = Ledger.from_row(counters.system[LEDGER])
    ledger = Ledger(*(one._replace(live=0, leased=0, corrupt=one.corrupt + one.live + one.leased) for one in last))
    batch = StoreBatch(store)
    for key, row in counters.system.items():
        batch.put("system", key, row)
    batch.put("system", LEDGER, ledger.to_row())
    batch.put("system", UNEXPLAINED, number_key(ledger.appended))
    store.write(batch)


def _checksum(content: object) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(content).encode())
