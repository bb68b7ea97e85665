"""Divides `max_bytes` among the parts of a store, so that its directory never exceeds it.

What the directory comes to at the worst moment, in parts of 1/64 of `max_bytes`:

    51  fragments: the files of their payloads, in full, and their rows twice: a compaction holds the old and the new
     4  records: what streams have sent, episodes, departures
     2  RocksDB's log: it is flushed when it is larger than `log_bytes`, and as much again may be written meanwhile
     2  RocksDB's own: manifests, event logs
     5  what files hold ahead of need, and what is not compacted yet
"""

from dataclasses import dataclass

PARTS = 64
KEPT_PARTS = 51
OWN_PARTS = 2

MIN_BUDGET_BYTES = 64 * 2**20
"""RocksDB is given its parts of at least so much."""

BUFFERS = 4
MAX_BUFFER_BYTES = 16 * 2**20
EVENT_LOGS = 3

FILES = 256
"""Files of payloads when there are as many bytes as may be. A lease keeps the files that its chunks lie in."""

MIN_FILE_BYTES = 2**16
MAX_FILE_BYTES = 2**26
EVICTED_PARTS = 1

ROW_WEIGHT = 2
ROW_COST_BYTES = 64
"""Size of a row besides its bytes."""

RECORD_BYTES = 2**14
"""One record, episode or departure or stream, is remembered per so many bytes."""

MAX_RECORDS = 100_000


@dataclass(frozen=True, slots=True)
class DiskBudget:
    """The parts of `max_bytes`."""

    max_bytes: int

    @property
    def kept_bytes(self) -> int:
        """The room of fragments: files of payloads, and rows by their weight."""
        return self.max_bytes * KEPT_PARTS // PARTS

    @property
    def file_bytes(self) -> int:
        """Bytes with which a file of payloads is full."""
        return min(max(self.kept_bytes // FILES, MIN_FILE_BYTES), MAX_FILE_BYTES)

    @property
    def evicted_bytes(self) -> int:
        """The bytes evicted at once, in whole files: each time takes an fsync."""
        return self.max_bytes * EVICTED_PARTS // PARTS

    @property
    def buffer_bytes(self) -> int:
        """One of RocksDB's buffers."""
        return min(self._database_bytes // (PARTS * BUFFERS), MAX_BUFFER_BYTES)

    @property
    def log_bytes(self) -> int:
        """RocksDB's log is flushed when it is larger."""
        return BUFFERS * self.buffer_bytes

    @property
    def manifest_bytes(self) -> int:
        """A manifest is replaced when it is larger; for a moment there are two."""
        return self._database_bytes * OWN_PARTS // (4 * PARTS)

    @property
    def event_log_bytes(self) -> int:
        """One of the `EVENT_LOGS` that RocksDB keeps."""
        return self._database_bytes * OWN_PARTS // (4 * PARTS * EVENT_LOGS)

    @property
    def records_kept(self) -> int:
        """Episodes, departures and streams that are remembered, of each."""
        return min(self.max_bytes // RECORD_BYTES, MAX_RECORDS)

    @property
    def _database_bytes(self) -> int:
        return max(self.max_bytes, MIN_BUDGET_BYTES)


def row_weight(row_bytes: int) -> int:
    """The weight of a fragment's row against `kept_bytes`."""
    return ROW_WEIGHT * (row_bytes + ROW_COST_BYTES)
