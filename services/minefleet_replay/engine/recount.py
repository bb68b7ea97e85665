"""Recounts the ledger from the rows of an open store, without its memory."""

from collections.abc import Iterator
from dataclasses import dataclass

from minefleet_replay.state.deduplication import ChunkName
from minefleet_replay.state.lease_table import read_rows
from minefleet_replay.state.ledger import Amount, Ledger
from minefleet_replay.storage.rocksdb_store import Store
from minefleet_replay.storage.row_codec import LEDGER, FragmentRow, number_of, read_names


@dataclass(frozen=True, slots=True)
class Recount:
    """The sums of the rows."""

    ledger: Ledger
    """As it was written."""
    named: int
    """Names that streams remember: every fragment ever appended, while no stream is forgotten."""
    live: Amount
    leased: Amount
    quarantined: Amount
    """The corrupt fragments that are still stored."""

    def faults(self) -> Iterator[str]:
        """The sums that do not agree."""
        if not self.ledger.is_balanced:
            yield f"the buckets do not add up: {self.ledger}"
        if self.named > self.ledger.appended:
            yield f"streams name {self.named} fragments, {self.ledger.appended} were appended"
        for unit, account in self.ledger._asdict().items():
            live, leased, quarantined = (getattr(one, unit) for one in (self.live, self.leased, self.quarantined))
            for bucket, counted, recounted in (("live", account.live, live), ("leased", account.leased, leased)):
                if counted != recounted:
                    yield f"the ledger counts {counted} {unit} as {bucket}, the rows hold {recounted}"
            if quarantined > account.corrupt:
                yield f"{quarantined} {unit} are quarantined, the ledger counts {account.corrupt} as corrupt"


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
