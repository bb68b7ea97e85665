"""Brings leased fragments to the loop, one iteration ahead where that is allowed.

    replay ── lease ─▶ names ── read ─▶ bytes ── decode ─▶ half-packed fragments ── collate ─▶ batch ──▶ loop
    replay ◀──────────────────────────────── ack, release ────────────────────────────────────────── loop

With `ahead`, one thread fetches the batch of the next iteration while this one trains: it asks for chunks that may
still be used one version later, holds at most one batch, and is started again when the loop takes it. It waits for
replay to have enough; the loop waits for it. Training never waits for it, so the chunks that it waits for are made.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain, starmap
from typing import Protocol

from minefleet.core.errors import FencedError, NotFoundError
from minefleet.rpc.codec import HalfPacked, decode_half
from minefleet.rpc.replay_types import Order, Packed
from minefleet.rpc.retrier import StoppedError
from minefleet.v1.replay_service_pb2 import LeasedChunk
from minefleet_learner.data.batch import Batch
from minefleet_learner.data.burn_in_mask import burned_steps
from minefleet_learner.data.collate import Collator

logger = logging.getLogger(__name__)

LEASE_WAIT_S = 1.0
"""Duration of one Lease's wait; bounds how late a stop is noticed."""
WAITING_FOR_FRAGMENTS = "waiting for fragments"


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseInfo:
    """A lease without the fragments themselves."""

    number: int
    """Of the lease."""
    staleness: list[int]
    """Of each fragment's chunk when it is used, in versions."""
    uses: list[int]
    """Of each fragment's chunk, this one included."""
    new_steps: int
    """Steps to train on that were never leased and acked before."""


Leased = tuple[LeaseInfo, Batch | None]
"""A lease and its fragments, which are None where this rank has none of them."""


class LeaseSource(Protocol):
    """The source of chunks: `Shards`, or one rank's part of what they lease."""

    def lease(
        self, number: int, *, use_version: int, wait_s: float, order: Order, settings: str = ""
    ) -> list[LeasedChunk] | None:
        """Leases chunks; None when the wait ran out."""

    def read(self, number: int, chunks: Sequence[LeasedChunk]) -> Iterator[Packed]:
        """Yields the fragments of chunks of a lease."""

    def ack(self, number: int) -> int:
        """Acks a lease as trained. Returns the environment steps taken so far."""

    def release(self, number: int) -> None:
        """Gives a lease back unused."""


class Prefetcher:
    """The leases of one epoch."""

    def __init__(
        self,
        replay: LeaseSource,
        *,
        order: Order,
        readers: int,
        collator: Collator,
        burn_in: int,
        ahead: bool,
        may_be_empty: bool,
        stopping: threading.Event,
        report: Callable[[str | None], None],
        reading: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Stores its arguments; nothing is leased yet.

        Args:
            replay: A lease holds the steps of one iteration, or this rank's part of them.
            order: Which chunks to prefer.
            readers: Threads that read.
            collator: Makes batches of what was read.
            burn_in: Steps at a fragment's start that are not trained on.
            ahead: Whether the next batch is fetched while one is trained on.
            may_be_empty: Whether a lease without a fragment that could be read is used all the same, as ranks do, for
                others may have some.
            stopping: Ends every wait.
            report: Called with the reason of a wait for fragments, and with None when they have come.
            reading: Entered while fragments are read.
        """
        self._replay = replay
        self._order = order
        self._collator = collator
        self._burn_in = burn_in
        self._may_be_empty = may_be_empty
        self._stopping = stopping
        self._ended = threading.Event()
        self._report = report
        self._reading = reading
        self._readers = readers
        self._pool = ThreadPoolExecutor(readers, thread_name_prefix="reader") if readers > 1 else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch") if ahead else None
        self._next: Future[Leased] | None = None
        self._numbers = 0
        self._open: set[int] = set()

    def take(
        self, version: int, settings: str = "", next_settings: str = "", waiting: Callable[[], None] = lambda: None
    ) -> Leased:
        """Returns fragments to use at `version`, and starts to fetch those for the version after it.

        Args:
            version: In use.
            settings: Of this iteration, for replay: JSON. Where it was fetched ahead, it had these then.
            next_settings: Of the one after it.
            waiting: Called again and again while it waits.

        Raises:
            StoppedError: If asked to stop while waiting.
        """

        def report(waits_for: str | None) -> None:
            self._report(waits_for)
            if waits_for is not None:
                waiting()

        if self._thread is None:
            return self._fetch(version, settings, report)
        leased = self._wait(self._next or self._thread.submit(self._fetch, version, settings), report)
        self._next = self._thread.submit(self._fetch, version + 1, next_settings)
        return leased

    def ack(self, lease: LeaseInfo) -> int:
        """Acks them as trained, from any one thread. Returns the environment steps taken so far."""
        env_steps = self._replay.ack(lease.number)
        self._open.discard(lease.number)
        return env_steps

    @property
    def is_over(self) -> bool:
        """Whether no more fragments are waited for."""
        return self._stopping.is_set() or self._ended.is_set()

    def end(self) -> None:
        """Ends every wait for fragments: no more are wanted. Called from any thread."""
        self._ended.set()

    def close(self) -> None:
        """Gives back what was not acked. `stopping` is set by now, and nobody acks any more."""
        for pool in (self._thread, self._pool):
            if pool is not None:
                pool.shutdown(cancel_futures=True)
        self._collator.close()
        for number in sorted(self._open):
            self._release(number)
        self._open.clear()

    def _release(self, number: int) -> None:
        try:
            self._replay.release(number)
        except (NotFoundError, FencedError):
            return  # Nothing was charged, or a newer epoch has given it back already.
        except StoppedError:
            logger.info("lease %d is left to the next epoch, which gives it back", number)

    def _wait(self, future: Future[Leased], report: Callable[[str | None], None]) -> Leased:
        waiting = False
        while True:
            try:
                leased = future.result(LEASE_WAIT_S)
            except TimeoutError:
                report(WAITING_FOR_FRAGMENTS)
                waiting = True
            else:
                if waiting:
                    report(None)
                return leased

    def _fetch(self, use_version: int, settings: str, report: Callable[[str | None], None] = lambda _: None) -> Leased:
        """Leases until something could be read."""
        while True:
            number, chunks = self._lease(use_version, settings, report)
            with self._reading():
                fragments = list(self._read(number, chunks))
                if fragments or self._may_be_empty:
                    return self._leased(number, chunks, fragments, use_version)
            logger.warning("every fragment of lease %d is corrupt", number)
            self._replay.ack(number)
            self._open.discard(number)

    def _lease(
        self, use_version: int, settings: str, report: Callable[[str | None], None]
    ) -> tuple[int, list[LeasedChunk]]:
        self._numbers += 1
        self._open.add(self._numbers)
        waiting = False
        while not self.is_over:
            chunks = self._replay.lease(
                self._numbers, use_version=use_version, wait_s=LEASE_WAIT_S, order=self._order, settings=settings
            )
            if chunks is not None:
                if waiting:
                    report(None)
                return self._numbers, chunks
            report(WAITING_FOR_FRAGMENTS)
            waiting = True
        raise StoppedError("stopped while waiting for fragments")

    def _read(self, number: int, chunks: Sequence[LeasedChunk]) -> Iterator[HalfPacked]:
        """Reads, verifies and decodes what is small, each reader its share of the chunks."""
        if self._pool is None:
            return starmap(decode_half, self._replay.read(number, chunks))
        shares = [share for reader in range(self._readers) if (share := chunks[reader :: self._readers])]
        parts = self._pool.map(lambda share: list(starmap(decode_half, self._replay.read(number, share))), shares)
        return chain.from_iterable(parts)

    def _leased(self, number: int, chunks: list[LeasedChunk], fragments: list[HalfPacked], use_version: int) -> Leased:
        chunk_of = {(chunk.name.stream, chunk.name.chunk): chunk for chunk in chunks}
        mine = [chunk_of[half.header.name.stream, half.header.chunk] for half in fragments]
        fresh = (
            len(half.steps) - burned_steps(half.steps.first, self._burn_in)
            for half, chunk in zip(fragments, mine, strict=True)
            if chunk.uses == 0
        )
        lease = LeaseInfo(
            number=number,
            staleness=[use_version - chunk.oldest_version for chunk in mine],
            uses=[chunk.uses + 1 for chunk in mine],
            new_steps=sum(fresh),
        )
        return lease, self._collator.collate(fragments) if fragments else None
