"""Reads why fragments left, from the store alone: nothing waits for it."""

import json
from collections.abc import Iterable
from heapq import nlargest

from minefleet.core.errors import CorruptError, NotFoundError
from minefleet.rpc.fragment_drop_record import DropRecord
from minefleet_replay.storage.rocksdb_store import Store

_TIME = b', "at": '


def why_dropped(store: Store, stream: str, limit: int) -> list[DropRecord]:
    """Returns the latest departures of a stream, or of all when it is empty, the latest first.

    Raises:
        NotFoundError: If nothing is known of the stream.
    """
    departures = latest((row for _, row in store.scan("drops")), stream, limit)
    if stream and not departures and store.get("names", stream.encode()) is None:
        raise NotFoundError(f"replay knows nothing of stream {stream}")
    return departures


def latest(rows: Iterable[bytes], stream: str, limit: int) -> list[DropRecord]:
    """Returns the latest departures among rows, the latest first.

    Rows lie in the order in which fragments came, not in which they left, so all are looked at; few are parsed.
    """
    wanted = b'"stream": ' + json.dumps(stream).encode() + b","
    found = (row for row in rows if not stream or wanted in row)
    return [read_drop(row) for row in nlargest(limit, found, key=_left_at)]


def read_drop(row: bytes) -> DropRecord:
    """Inverts `drop_row`.

    Raises:
        CorruptError: If the row is none.
    """
    try:
        values = json.loads(row)
        departure = DropRecord(sequences=tuple(values.pop("sequences")), **values)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptError(f"a record of why fragments left is unreadable: {error}") from error
    return departure


def _left_at(row: bytes) -> float:
    """When it left, without parsing the rest."""
    try:
        return float(row[row.rindex(_TIME) + len(_TIME) : -1])
    except ValueError as error:
        raise CorruptError(f"a record of why fragments left has no time: {error}") from error
