"""The account of every fragment ever stored: each is in exactly one bucket.

live      stored, in no open lease
leased    stored, in an open lease
trained   left after at least one acked use, for whatever reason it left
expired   left unused: too stale, of an abandoned lineage, or of a chunk that was never completed
evicted   left unused, to make room
corrupt   its bytes failed their checksum, or it left unused because those of its chunk did

`appended = live + leased + trained + expired + evicted + corrupt` at every moment. Each bucket is counted on its own.
"""

from struct import Struct
from typing import Literal, NamedTuple

Bucket = Literal["live", "leased", "trained", "expired", "evicted", "corrupt"]
Reason = Literal["trained", "stale", "abandoned", "incomplete", "late", "evicted", "corrupt"]
"""Why fragments left. `late`: the rest of its chunk had been dropped before it came."""

BUCKETS: tuple[Bucket, ...] = ("live", "leased", "trained", "expired", "evicted", "corrupt")
BUCKET_OF: dict[Reason, Bucket] = {
    "trained": "trained",
    "stale": "expired",
    "abandoned": "expired",
    "incomplete": "expired",
    "late": "expired",
    "evicted": "evicted",
    "corrupt": "corrupt",
}

_ROW = Struct("<7Q")


class Ledger(NamedTuple):
    """Fragments, counted."""

    appended: int = 0
    live: int = 0
    leased: int = 0
    trained: int = 0
    expired: int = 0
    evicted: int = 0
    corrupt: int = 0

    def added(self, bucket: Bucket) -> "Ledger":
        """One more fragment was appended, into a bucket."""
        return self._replace(appended=self.appended + 1, **{bucket: getattr(self, bucket) + 1})

    def moved(self, source: Bucket, target: Bucket, fragments: int) -> "Ledger":
        """Fragments went from one bucket to another."""
        if source == target:
            return self
        changes = {source: getattr(self, source) - fragments, target: getattr(self, target) + fragments}
        return self._replace(**changes)

    @property
    def unaccounted(self) -> int:
        """Fragments that are in no bucket; below 0 when some are in two."""
        return self.appended - sum(self._counts())

    @property
    def is_balanced(self) -> bool:
        """Whether every fragment is in exactly one bucket."""
        return min(self._counts()) >= 0 and self.unaccounted == 0

    def _counts(self) -> list[int]:
        return [getattr(self, bucket) for bucket in BUCKETS]

    def figures(self) -> dict[str, int]:
        """The counts by name."""
        return self._asdict()

    def to_row(self) -> bytes:
        """Packs the counts."""
        return _ROW.pack(*self)

    @classmethod
    def from_row(cls, row: bytes) -> "Ledger":
        """Inverts `to_row`."""
        return cls(*_ROW.unpack(row))


def bucket_of(reason: Reason, uses: int) -> Bucket:
    """The bucket of a fragment that leaves for a reason after so many acked uses."""
    return "trained" if uses else BUCKET_OF[reason]
