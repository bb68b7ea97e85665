"""Unpacks what is large of a batch for one pass after another, ahead of the passes.

    announce ─▶ passes ─▶ threads: rows, packed or kept ─▶ unpack, stack ─▶ upload ─▶ at most `ahead` ─▶ take
                                      ▲                      │
                                      └── what may be kept ──┘

The threads work on the passes that were announced, at most `ahead` of them; `take` waits for its own and lets the next
one begin. A pass that was not announced is unpacked by whoever takes it. The last one taken is held, so that several
policies look at it in turn.

Shape legend: b = rows of a pass.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from itertools import accumulate

from torch import Tensor

from minefleet_learner.large import Large, Row, stack, unpack
from minefleet_learner.uploading import Uploader

Rows = tuple[int, ...]


class Unpacker:
    """What is large of a batch's rows, unpacked when it is wanted. For one thread."""

    def __init__(
        self,
        rows: Sequence[Row],
        *,
        row_bytes: Sequence[int],
        width: int,
        kept_bytes: int,
        uploader: Uploader,
        threads: Executor,
        ahead: int,
    ) -> None:
        """Stores its arguments; nothing is unpacked yet.

        Args:
            rows: Of the batch, packed.
            row_bytes: What unpacking each one takes.
            width: Observations seen in the longest one.
            kept_bytes: The first rows that together take no more are kept once they are unpacked.
            uploader: Takes passes to the device.
            threads: Where passes are unpacked.
            ahead: Passes that are unpacked before they are taken, >= 1.
        """
        self._rows = list(rows)
        self._width = width
        self._keeps = [total <= kept_bytes for total in accumulate(row_bytes)]
        self._uploader = uploader
        self._threads = threads
        self._ahead = ahead
        self._announced: Iterator[Rows] = iter(())
        self._coming: deque[tuple[Rows, Future[Large]]] = deque()
        self._last: tuple[Rows, Large] | None = None

    def announce(self, passes: Iterable[Tensor]) -> None:
        """Says which rows [b] will be taken next, pass by pass; forgets what was announced before."""
        for _, future in self._coming:
            future.cancel()
        self._coming.clear()
        self._announced = iter([_key(rows) for rows in passes])
        self._begin()

    def take(self, rows: Tensor) -> Large:
        """What is large of rows [b], on the device."""
        wanted = _key(rows)
        if self._last is None or self._last[0] != wanted:
            self._last = wanted, self._next(wanted)
        return self._last[1]

    def _next(self, wanted: Rows) -> Large:
        if not self._coming or self._coming[0][0] != wanted:
            return self._bring(wanted)
        _, future = self._coming.popleft()
        self._begin()
        return future.result()

    def _begin(self) -> None:
        while len(self._coming) < self._ahead and (rows := next(self._announced, None)) is not None:
            self._coming.append((rows, self._threads.submit(self._bring, rows)))

    def _bring(self, rows: Rows) -> Large:
        large = stack([self._row(row) for row in rows], self._width, pinned=self._uploader.wants_pinned)
        return Large(**self._uploader.upload({"seen": large.seen, "recurrent_state": large.recurrent_state}))

    def _row(self, index: int) -> Row:
        row = self._rows[index]
        if self._keeps[index]:
            self._rows[index] = row = replace(row, contents=unpack(row.contents))
        return row


def _key(rows: Tensor) -> Rows:
    return tuple(rows.tolist())
