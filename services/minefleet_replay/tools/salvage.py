"""Reads all rows of a store that can be read, and says where others may have been.

What is rotten is a block of rows. RocksDB refuses it and does not say where it ends, so the end is searched: keys are
taken as numbers, by steps that double until a seek works, then by halves.
"""

from collections.abc import Iterator
from typing import NamedTuple

from minefleet.errors import CorruptError
from minefleet_replay.store import Family, Store

NUMBER_BYTES = 8
WIDTHS: dict[Family, int] = {"names": 1024, "system": 1024}
"""Bytes of the longest key; of the other families, keys are numbers."""


class Gap(NamedTuple):
    """Rows that cannot be read: of keys in [start, stop), if there are any."""

    family: Family
    start: bytes
    stop: bytes | None
    """None: to the end of the family."""
    why: str

    def holds(self, key: bytes) -> bool:
        """Whether a row of that key may have been in it."""
        return self.start <= key and (self.stop is None or key < self.stop)


class Salvage:
    """Reads a store; collects what could not be read."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.gaps: list[Gap] = []

    def rows(self, family: Family) -> Iterator[tuple[bytes, bytes]]:
        """Yields the readable rows of a family, by key."""
        start: bytes | None = b""
        while start is not None:
            last = start
            try:
                for key, value in self.store.scan(family, start):
                    last = key + b"\0"
                    yield key, value
                return
            except CorruptError as error:
                start = self._end_of_rot(family, last)
                self.gaps.append(Gap(family, last, start, str(error)))

    def _end_of_rot(self, family: Family, rotten: bytes) -> bytes | None:
        """The first key after a rotten one from which rows can be read again; None when there is none."""
        width = WIDTHS.get(family, NUMBER_BYTES)
        end = 1 << (8 * width)
        low, step = int.from_bytes(rotten.ljust(width, b"\0")[:width], "big"), 1
        while low + step < end and not self._is_readable(family, (low + step).to_bytes(width, "big")):
            low, step = low + step, 2 * step
        high = min(low + step, end)
        while high - low > 1:
            middle = (low + high) // 2
            if self._is_readable(family, middle.to_bytes(width, "big")):
                high = middle
            else:
                low = middle
        return high.to_bytes(width, "big") if high < end else None

    def _is_readable(self, family: Family, key: bytes) -> bool:
        try:
            next(self.store.scan(family, key), None)
        except CorruptError:
            return False
        return True
