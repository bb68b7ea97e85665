"""Chunks of fragments, as the index holds them in memory."""

from dataclasses import dataclass, field
from typing import NamedTuple

from minefleet_replay.state.deduplication import ChunkName
from minefleet_replay.state.ledger_totals import Amount

Age = tuple[int, float, int]
"""Oldest version, when the first step was taken, and id."""


class PayloadLocation(NamedTuple):
    """The place of a payload: a file of the payload log, and the offset in it."""

    file: int
    offset: int


NO_LOCATION = PayloadLocation(0, 0)
"""Of a payload that was not kept."""


class FragmentEntry(NamedTuple):
    """One stored fragment."""

    sequence: int
    number: int
    """Its append number: the key of its row."""
    payload_bytes: int
    oldest_version: int
    newest_version: int
    steps: int
    chunk: int
    """Number of its chunk."""
    chunk_start: int
    """Sequence of the chunk's first fragment."""
    closes_chunk: bool
    place: PayloadLocation
    """Place of its payload."""
    task: str = ""
    corrupt: bool = False
    row_bytes: int = 0
    """Bytes of its row in `meta`."""


@dataclass(slots=True, eq=False)
class Chunk:
    """Consecutive fragments of one stream."""

    name: ChunkName
    id: int
    began_at: float = 0.0
    """When its first step was taken, or the store was opened, by replay's clock."""
    uses: int = 0
    """Acked uses."""
    leases: int = 0
    """Open leases that hold it."""
    fragments: list[FragmentEntry] = field(default_factory=list)
    """By sequence."""
    whole: bool = False
    """Nothing can be added to it any more."""
    is_dead: bool = False
    """It is to be dropped; nothing else becomes of it."""

    @property
    def broken(self) -> bool:
        """Whether bytes of it are corrupt, so that it may not be leased again."""
        return any(fragment.corrupt for fragment in self.fragments)

    @property
    def charge(self) -> int:
        """Uses that are spent or may be."""
        return self.uses + self.leases

    @property
    def oldest_version(self) -> int:
        """The oldest version that acted in it."""
        return min(fragment.oldest_version for fragment in self.fragments)

    @property
    def age(self) -> Age:
        """Sorts chunks by their oldest version, then by when they began."""
        return self.oldest_version, self.began_at, self.id

    @property
    def newest_version(self) -> int:
        """The newest version that acted in it."""
        return max(fragment.newest_version for fragment in self.fragments)

    @property
    def payload_bytes(self) -> int:
        """Bytes of its payloads."""
        return sum(fragment.payload_bytes for fragment in self.fragments)

    @property
    def steps(self) -> int:
        """Steps in its fragments."""
        return sum(fragment.steps for fragment in self.fragments)

    @property
    def sound(self) -> Amount:
        """Fragments whose bytes are not known to be corrupt."""
        steps = [fragment.steps for fragment in self.fragments if not fragment.corrupt]
        return Amount(len(steps), sum(steps))
