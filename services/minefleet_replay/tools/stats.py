"""Computes a store's statistics from its rows: those of replay's status, and some that take a scan."""

from collections import Counter
from pathlib import Path
from typing import Any

from minefleet.v1 import fragment_pb2
from minefleet_replay.engine.memory_state import ReplayState, read_state
from minefleet_replay.state.limits import Limits
from minefleet_replay.storage.rocksdb_store import DATABASE, Store
from minefleet_replay.storage.row_codec import FragmentRow, number_of
from minefleet_replay.tools.offline_store import looking


def stats(directory: Path, limits: Limits) -> dict[str, Any]:
    """Reads a store that is locked. Returns its statistics, by the names of the status.

    Raises:
        CorruptError: If it is damaged.
    """
    with looking(directory / DATABASE, limits.max_bytes) as store:
        state = read_state(store, limits)
        raw_bytes = sum(header.raw_bytes for header in _headers(store))
    return collect_stats(state, raw_bytes)


def collect_stats(state: ReplayState, raw_bytes: int) -> dict[str, Any]:
    """Statistics of a state that nobody changes."""
    newest = state.run_state.newest_version
    staleness = Counter(max(0, newest - chunk.oldest_version) for chunk in state.index)
    return {
        **state.stats(),
        "stored_bytes": state.index.payload_bytes,
        "stored_raw_bytes": raw_bytes,
        "staleness": {str(versions): staleness[versions] for versions in sorted(staleness)},
        "uses": {str(uses): count for uses, count in sorted(Counter(chunk.uses for chunk in state.index).items())},
    }


def _headers(store: Store) -> list[fragment_pb2.FragmentHeader]:
    metas = (FragmentRow.from_row(number_of(key), row) for key, row in store.scan("meta"))
    return [fragment_pb2.FragmentHeader.FromString(meta.header) for meta in metas]
