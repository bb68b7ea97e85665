"""Recounts the ledger from the rows of an open store, without its memory."""

from collections.abc import Iterator
from dataclasses import dataclass

from minefleet_replay.leases import read_rows
from minefleet_replay.ledger import Ledger
from minefleet_replay.names import ChunkName
from minefleet_replay.rows import LEDGER, Meta, number_of, read_names
from minefleet_replay.store import Store


@dataclass(frozen=True, slots=True)
class Recount:
    """What the rows say."""

    ledger: Ledger
    """As it was written."""
    named: int
    """Names that streams remember: every fragment ever appended, while no stream is forgotten."""
    live: int
    leased: int
    quarantined: int
    """Fragments that are corrupt and still stored."""

    def faults(self) -> Iterator[str]:
        """What does not add up."""
        if not self.ledger.is_balanced:
            yield f"the buckets do not add up: {self.ledger}"
        if self.named > self.ledger.appended:
            yield f"streams name {self.named} fragments, {self.ledger.appended} were appended"
        for bucket, counted, recounted in (
            ("live", self.ledger.live, self.live),
            ("leased", self.ledger.leased, self.leased),
        ):
            if counted != recounted:
                yield f"the ledger counts {counted} fragments as {bucket}, the rows hold {recounted}"
        if self.quarantined > self.ledger.corrupt:
            yield f"{self.quarantined} fragments are quarantined, the ledger counts {self.ledger.corrupt} as corrupt"


def recount(store: Store, fragments_per_chunk: int) -> Recount:
    """Counts the rows."""
    leases = read_rows({number_of(key): row for key, row in store.scan("leases")})
    leased_ids = {chunk_id for lease in leases.open.values() for chunk_id, _ in lease.chunks}
    ids: dict[ChunkName, int] = {}
    live = leased = quarantined = 0
    for key, row in store.scan("meta"):
        meta = Meta.from_row(number_of(key), row)
        name = ChunkName(meta.stream, meta.fragment.sequence // fragments_per_chunk)
        is_leased = ids.setdefault(name, meta.fragment.number) in leased_ids
        quarantined += meta.fragment.corrupt
        leased += is_leased and not meta.fragment.corrupt
        live += not is_leased and not meta.fragment.corrupt
    ledger = store.get("system", LEDGER)
    return Recount(
        ledger=Ledger.from_row(ledger) if ledger else Ledger(),
        named=sum(high - low for _, row in store.scan("names") for low, high in read_names(row).fragments),
        live=live,
        leased=leased,
        quarantined=quarantined,
    )
