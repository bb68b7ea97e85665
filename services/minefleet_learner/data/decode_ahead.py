"""Unpacks what is large of a batch pool by pool, ahead of the training.

    announce ─▶ pools of rows ─▶ a thread: unpack and stack, by many threads ─▶ upload ─▶ the next pool ─▶ take

A pool is rows that fit in memory twice over: while one is trained on, the next is unpacked. Rows that were not
announced as parts of one pool are unpacked by the taker. The last ones taken are held, so that several
policies, and several minibatches, look at them in turn.

Shape legend: B = rows of the batch, b = rows that are asked for.
"""

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass

import torch
from torch import Tensor

from minefleet.core.tree import Tree, tree_map
from minefleet_learner.data.to_device import Uploader
from minefleet_learner.data.unpacked_observations import Row, UnpackedObs, stack


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedRows:
    """The large parts of some rows of a batch, on the device."""

    large: UnpackedObs
    place: Tensor
    """[B] int64, where each row lies in it; -1 for one that does not."""

    def holds(self, rows: Tensor) -> bool:
        """Whether all of rows [b] are here."""
        return bool((self.place[rows] >= 0).all())

    def pick(self, rows: Tensor) -> UnpackedObs:
        """The large parts of rows [b], in their order."""
        at = self.place[rows]

        def picked(tree: Tree) -> Tree:
            return tree_map(lambda leaf: leaf[at], tree)

        return UnpackedObs(seen=picked(self.large.seen), recurrent_state=picked(self.large.recurrent_state))


class DecodeAhead:
    """Unpacks the large parts of a batch's rows when they are wanted. For one thread."""

    def __init__(
        self,
        rows: Sequence[Row],
        *,
        width: int,
        rows_per_pool: int,
        device: torch.device,
        uploader: Uploader,
        threads: Executor,
        ahead: Executor,
    ) -> None:
        """Stores its arguments; nothing is unpacked yet.

        Args:
            rows: Of the batch, packed.
            width: Observations seen in the longest one.
            rows_per_pool: So many are unpacked together, >= 1; up to two pools are in memory.
            device: Where they are wanted.
            uploader: Takes them there.
            threads: They unpack rows.
            ahead: Where the next pool is prepared.
        """
        self._rows = rows
        self._width = width
        self._rows_per_pool = rows_per_pool
        self._device = device
        self._uploader = uploader
        self._threads = threads
        self._ahead = ahead
        self._announced: list[list[int]] = []
        """Pools, the last one first."""
        self._coming: tuple[list[int], Future[DecodedRows]] | None = None
        self._held: DecodedRows | None = None

    def announce(self, rows: Tensor) -> Sequence[Tensor]:
        """Parts rows [b] into pools, which will be taken in this order; forgets what was announced before."""
        pools = torch.split(rows, self._rows_per_pool)
        self._announced = [pool.tolist() for pool in reversed(pools)]
        if self._coming is not None:
            self._coming[1].cancel()
        self._begin()
        return pools

    def take(self, rows: Tensor) -> DecodedRows:
        """The large parts of rows [b], and perhaps of others: those of the pool that they were announced in."""
        if self._held is None or not self._held.holds(rows):
            self._held = self._next(rows.tolist())
        return self._held

    def _next(self, wanted: Sequence[int]) -> DecodedRows:
        if self._coming is None or not set(wanted) <= set(self._coming[0]):
            return self._bring(list(dict.fromkeys(wanted)))
        # What is held now goes before the pool after the next one comes.
        self._held = self._coming[1].result()
        self._begin()
        return self._held

    def _begin(self) -> None:
        self._coming = None
        if self._announced:
            pool = self._announced.pop()
            self._coming = pool, self._ahead.submit(self._bring, pool)

    def _bring(self, rows: list[int]) -> DecodedRows:
        large = stack(
            [self._rows[row] for row in rows], self._width, pinned=self._uploader.wants_pinned, spread=self._threads.map
        )
        place = torch.full((len(self._rows),), -1)
        place[rows] = torch.arange(len(rows))
        uploaded = self._uploader.upload({"seen": large.seen, "recurrent_state": large.recurrent_state})
        return DecodedRows(large=UnpackedObs(**uploaded), place=place.to(self._device))
