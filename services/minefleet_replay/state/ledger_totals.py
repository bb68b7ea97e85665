"""The account of every fragment ever stored, and of its steps: each is in exactly one bucket.

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

from minefleet.core.errors import CorruptError

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

_ACCOUNT = Struct("<7Q")


class Amount(NamedTuple):
    """Some fragments."""

    fragments: int
    steps: int
    """In them."""


class LedgerAccount(NamedTuple):
    """Things, counted by bucket."""

    appended: int = 0
    live: int = 0
    leased: int = 0
    trained: int = 0
    expired: int = 0
    evicted: int = 0
    corrupt: int = 0

    def added(self, bucket: Bucket, count: int) -> "LedgerAccount":
        """So many more were appended, into a bucket."""
        return self._replace(appended=self.appended + count, **{bucket: getattr(self, bucket) + count})

    def moved(self, source: Bucket, target: Bucket, count: int) -> "LedgerAccount":
        """So many went from one bucket to another."""
        if source == target:
            return self
        changes = {source: getattr(self, source) - count, target: getattr(self, target) + count}
        return self._replace(**changes)

    @property
    def unaccounted(self) -> int:
        """The amount in no bucket; below 0 when some is in two."""
        return self.appended - sum(self._counts())

    @property
    def is_balanced(self) -> bool:
        """Whether each is in exactly one bucket."""
        return min(self._counts()) >= 0 and self.unaccounted == 0

    def _counts(self) -> list[int]:
        return [getattr(self, bucket) for bucket in BUCKETS]


class Ledger(NamedTuple):
    """The two accounts."""

    fragments: LedgerAccount = LedgerAccount()
    steps: LedgerAccount = LedgerAccount()

    def added(self, bucket: Bucket, steps: int) -> "Ledger":
        """One more fragment of so many steps was appended, into a bucket."""
        return Ledger(self.fragments.added(bucket, 1), self.steps.added(bucket, steps))

    def moved(self, source: Bucket, target: Bucket, amount: Amount) -> "Ledger":
        """Fragments went from one bucket to another."""
        return Ledger(*(account.moved(source, target, count) for account, count in zip(self, amount, strict=True)))

    @property
    def appended(self) -> int:
        """Fragments ever stored: the number of the next one."""
        return self.fragments.appended

    @property
    def is_balanced(self) -> bool:
        """Whether both accounts are."""
        return self.fragments.is_balanced and self.steps.is_balanced

    def stats(self) -> dict[str, int]:
        """The counts by bucket and unit."""
        accounts = self._asdict().items()
        return {f"{bucket}_{unit}": count for unit, account in accounts for bucket, count in account._asdict().items()}

    def to_row(self) -> bytes:
        """Packs the counts."""
        return b"".join(_ACCOUNT.pack(*account) for account in self)

    @classmethod
    def from_row(cls, row: bytes) -> "Ledger":
        """Inverts `to_row`."""
        accounts = [LedgerAccount(*counts) for counts in _ACCOUNT.iter_unpack(row)]
        if len(accounts) != len(cls._fields):
            raise CorruptError(f"the ledger's row has {len(row)} bytes")
        return cls(*accounts)


def bucket_of(reason: Reason, uses: int) -> Bucket:
    """The bucket of a fragment that leaves for a reason after so many acked uses."""
    return "trained" if uses else BUCKET_OF[reason]
