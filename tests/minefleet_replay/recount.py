"""Recounts the ledger from the rows of an open store, without its memory."""

from minefleet_replay.state.deduplication import ChunkName
from minefleet_replay.state.lease_table import read_rows
from minefleet_replay.state.ledger_totals import Amount, Ledger
from minefleet_replay.storage.rocksdb_store import Store
from minefleet_replay.storage.row_codec import LEDGER, FragmentRow, number_of, read_names
from minefleet_replay.tools.fsck import Recount


def recount(store: Store) -> Recount:
    """Counts the rows."""
    leases = read_rows({number_of(key): row for key, row in store.scan("leases")})
    leased_ids = {chunk_id for lease in leases.open.values() for chunk_id, _ in lease.chunks}
    ids: dict[ChunkName, int] = {}
    steps = dict[str, list[int]](live=[], leased=[], quarantined=[])
    for key, row in store.scan("meta"):
        meta = FragmentRow.from_row(number_of(key), row)
        name = ChunkName(meta.stream, meta.fragment.chunk)
        is_leased = ids.setdefault(name, meta.fragment.number) in leased_ids
        kind = "quarantined" if meta.fragment.corrupt else "leased" if is_leased else "live"
        steps[kind].append(meta.fragment.steps)
    ledger = store.get("system", LEDGER)
    return Recount(
        ledger=Ledger.from_row(ledger) if ledger else Ledger(),
        named=sum(high - low for _, row in store.scan("names") for low, high in read_names(row).fragments),
        **{kind: Amount(len(counts), sum(counts)) for kind, counts in steps.items()},
    )
