"""Serves the learner: admits it, leases chunks, and takes acknowledgements and releases."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from minefleet.core.errors import FencedError, NotFoundError, OverloadedError, RejectedError
from minefleet_replay.engine.memory_state import ReplayState
from minefleet_replay.engine.transaction import Transaction, TransactionManager
from minefleet_replay.state.chunk_names import ChunkName
from minefleet_replay.state.index import Chunk, FragmentEntry, Order
from minefleet_replay.state.leases import MAX_OPEN, Ending, OpenLease, ending_row
from minefleet_replay.state.ledger import Amount
from minefleet_replay.state.step_shares import TRAINED
from minefleet_replay.storage.rows import FragmentRow, number_key, uses_row

logger = logging.getLogger(__name__)

BUSY_RETRY_S = 0.5
LONGEST_WAIT_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnerPosition:
    """The calling learner and its position."""

    epoch: int
    version: int
    resumed_version: int
    first_version: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseRequest:
    """The request of a lease."""

    number: int
    steps: int
    use_version: int
    order: Order = "least_used"


@dataclass(frozen=True, slots=True)
class ChunkInLease:
    """One chunk of an open lease."""

    name: ChunkName
    uses: int
    """Uses acked before the lease."""
    oldest_version: int
    fragments: tuple[FragmentEntry, ...]

    @property
    def steps(self) -> int:
        """Steps in its fragments."""
        return sum(fragment.steps for fragment in self.fragments)

    @property
    def payload_bytes(self) -> int:
        """Bytes of its payloads."""
        return sum(fragment.payload_bytes for fragment in self.fragments)


class LeasePath:
    """Lends chunks to the learner of the newest epoch. Not thread-safe."""

    def __init__(self, keeper: TransactionManager, clock: Callable[[], float], rng: Random) -> None:
        self._keeper = keeper
        self._clock = clock
        self._rng = rng

    @property
    def _books(self) -> ReplayState:
        return self._keeper.books

    def refuse_fenced(self, learner: LearnerPosition) -> None:
        """Raises FencedError if a newer epoch has taken over."""
        epoch = self._books.standing.epoch
        if learner.epoch < epoch:
            raise FencedError(f"epoch {learner.epoch} is fenced: epoch {epoch} has taken over")

    def admit(self, learner: LearnerPosition) -> None:
        """Takes in where the learner stands.

        Raises:
            FencedError: If a newer epoch has taken over.
        """
        self.refuse_fenced(learner)
        standing = self._books.standing
        if learner.epoch > standing.epoch:
            self._take_over(learner.epoch)
        lineage = (learner.epoch, learner.resumed_version, learner.first_version)
        if learner.first_version and lineage != self._books.standing.lineage:
            self._abandon(lineage)
        if learner.version > self._books.standing.newest_version:
            self._hear(learner.version)

    def lease(self, wanted: LeaseRequest) -> list[ChunkInLease] | None:
        """Leases chunks, or returns what the lease holds already; None while there are not enough.

        Raises:
            RejectedError: If a lease of that number was closed before.
            OverloadedError: If too many leases are open.
        """
        leases = self._books.leases
        if wanted.number in leases.open:
            return self.lent(wanted.number)
        if wanted.number in leases.closed:
            raise RejectedError(f"lease {wanted.number} was {leases.closed[wanted.number]}; a lease needs a new number")
        if len(leases.open) >= MAX_OPEN:
            raise OverloadedError(f"{len(leases.open)} leases are open; ack or release one", BUSY_RETRY_S)
        use_version = self._look_ahead(wanted.use_version)
        oldest_version = use_version - self._books.limits.max_staleness
        chunks = self._books.index.choose(wanted.steps, wanted.order, oldest_version, self._rng)
        if not chunks:
            return None
        self._keeper.lease_clock.enough(self._clock())
        if self._waits_for_more(use_version):
            return None
        self._note_answer(use_version)
        self._open(OpenLease(wanted.number, use_version, tuple((chunk.id, chunk.uses) for chunk in chunks)), chunks)
        return self.lent(wanted.number)

    @property
    def patience_s(self) -> float:
        """When a lease that is refused may be granted although nothing has changed, seconds."""
        closing = self._keeper.lease_clock.forecast(self._clock())
        return LONGEST_WAIT_S if closing is None or not closing.at_most_in_s else closing.at_most_in_s

    def lent(self, number: int) -> list[ChunkInLease]:
        """The contents of an open lease.

        Raises:
            NotFoundError: If no such lease is open.
        """
        lease = self._find(number)
        chunks = ((self._books.index[chunk_id], uses) for chunk_id, uses in lease.chunks)
        return [ChunkInLease(chunk.name, uses, chunk.oldest_version, tuple(chunk.fragments)) for chunk, uses in chunks]

    def close(self, number: int, ending: Ending) -> None:
        """Closes a lease: its uses are spent when it was acked, refunded when released. Repeatable.

        Raises:
            NotFoundError: If no such lease is open, and none was closed in this way in this epoch.
        """
        if self._books.leases.closed.get(number) == ending:
            return
        lease, change = self._find(number), self._keeper.change()
        since = self._books.leases.since.get(number)
        if since is not None:
            change.then(partial(self._keeper.metrics.lease_open.observe, self._clock() - since))
        if since is not None and ending == "acked":
            self._trained(change, lease, since)
        change.put("leases", number_key(number), ending_row(ending))
        for forgotten in self._books.leases.surplus():
            change.delete("leases", number_key(forgotten))
            change.then(partial(self._books.leases.forget, forgotten))
        change.then(partial(self._books.leases.close, number, ending))
        for chunk_id, _ in lease.chunks:
            self._give_back(change, self._books.index[chunk_id], leases=1, uses=int(ending == "acked"))
        self._keeper.commit(change)

    def quarantine(self, name: ChunkName, fragment: FragmentEntry) -> None:
        """Notes that a leased fragment's bytes are corrupt.

        Raises:
            NotFoundError: If the fragment has left: its lease was closed meanwhile.
        """
        chunk = self._books.index.find(name)
        known = {one.number: one for one in chunk.fragments} if chunk is not None else {}
        if chunk is None or fragment.number not in known:
            raise NotFoundError(f"fragment {name.stream}/{fragment.sequence} has left: its lease was closed")
        if known[fragment.number].corrupt:
            return
        logger.warning("fragment %s/%d is corrupt; it is quarantined", name.stream, fragment.sequence)
        change = self._keeper.change()
        row = FragmentRow(name.stream, fragment._replace(corrupt=True), checksum=0, header=b"").to_row()
        change.put("meta", number_key(fragment.number), row)
        change.move("leased" if chunk.leases else "live", "corrupt", Amount(1, fragment.steps))
        change.then(partial(self._books.index.mark_corrupt, chunk, fragment))
        self._keeper.commit(change)

    def _note_answer(self, use_version: int) -> None:
        clock, streams, now = self._keeper.lease_clock, self._keeper.streams, self._clock()
        clock.answered(use_version, now)
        closing = clock.forecast(now)
        if closing is not None:
            clock.be_patient(streams.unfit(closing), len(streams))

    def _waits_for_more(self, use_version: int) -> bool:
        """Whether a chunk that is cut would be too stale for the next lease, and may still come for this one."""
        now, limits, streams = self._clock(), self._books.limits, self._keeper.streams
        closing = self._keeper.lease_clock.forecast(now)
        if closing is None or closing.use_version != use_version or not closing.at_most_in_s:
            return False
        last = use_version - limits.max_staleness
        longest_step_s = streams.longest_chunk_s(closing) / limits.chunk_steps
        return any(
            begun.step_s > longest_step_s
            and begun.since + limits.least_steps * begun.step_s < now + closing.at_most_in_s
            for begun in streams.begun_by(last)
        )

    def _find(self, number: int) -> OpenLease:
        lease = self._books.leases.open.get(number)
        if lease is None:
            ending = self._books.leases.closed.get(number, "never opened or is forgotten")
            raise NotFoundError(f"lease {number} is not open in epoch {self._books.standing.epoch}: it was {ending}")
        return lease

    def _open(self, lease: OpenLease, chunks: list[Chunk]) -> None:
        change = self._keeper.change()
        change.put("leases", number_key(lease.number), lease.to_row())
        change.then(partial(self._books.leases.grant, lease, self._clock()))
        for chunk in chunks:
            if not chunk.leases:
                change.move("live", "leased", chunk.sound)
            change.then(partial(self._books.index.charge, chunk, leases=1))
        self._keeper.commit(change)
        for chunk in chunks:
            self._keeper.metrics.lease_staleness.observe(lease.use_version - chunk.oldest_version)
            self._keeper.metrics.lease_uses.observe(chunk.uses)

    def _give_back(self, change: Transaction, chunk: Chunk, *, leases: int, uses: int) -> None:
        """Ends so many leases of a chunk, which spent so many uses; drops it when nothing more can come of it."""
        total = chunk.uses + uses
        change.then(partial(self._books.index.charge, chunk, uses=uses, leases=-leases))
        if uses:
            change.put("uses", number_key(chunk.id), uses_row(total))
            if not chunk.uses:
                change.then(partial(self._keeper.count, chunk.name.stream, chunk.fragments, TRAINED))
        if chunk.leases > leases:
            return
        change.move("leased", "live", chunk.sound)
        reason = self._keeper.reason_to_leave(chunk, total)
        if reason is not None:
            self._keeper.drop(change, chunk, reason, total)

    def _trained(self, change: Transaction, lease: OpenLease, leased_at: float) -> None:
        """Takes in how stale what is acked was when it was leased, and how long training on it took."""
        if self._keeper.balance is not None:
            change.then(partial(self._keeper.balance.trained, leased_at, self._clock()))
        for chunk in (self._books.index[chunk_id] for chunk_id, uses in lease.chunks if not uses):
            staleness = max(0, lease.use_version - chunk.oldest_version)
            change.then(partial(self._keeper.shares.used, chunk.fragments, staleness, leased_at - chunk.began_at))

    def _take_over(self, epoch: int) -> None:
        """A newer epoch begins: the leases of older ones are void, and what they charged is refunded."""
        change, books = self._keeper.change(), self._books
        for number in (*books.leases.open, *books.leases.closed):
            change.delete("leases", number_key(number))
        for chunk in [chunk for chunk in books.index if chunk.leases]:
            self._give_back(change, chunk, leases=chunk.leases, uses=0)
        change.then(books.leases.clear)
        self._keeper.stand(change, self._books.standing.taken_over(epoch))
        self._keeper.commit(change)
        logger.info("epoch %d has taken over", epoch)

    def _hear(self, version: int) -> None:
        """A newer version: what is too stale for it is dropped."""
        change = self._keeper.change()
        self._keeper.stand(change, self._books.standing.heard(version))
        self._keeper.commit(change)
        self._keeper.lease_clock.published(version, self._clock())
        self._raise_horizon(version)

    def _abandon(self, lineage: tuple[int, int, int]) -> None:
        """The learner resumed: chunks acted by versions after its checkpoint are dropped."""
        change = self._keeper.change()
        self._keeper.stand(change, self._books.standing.resumed(lineage, self._books.limits.max_staleness))
        self._keeper.commit(change)
        self._keeper.condemn(self._books.abandoned(), "abandoned")
        self._keeper.sweep()

    def _look_ahead(self, use_version: int) -> int:
        """Drops what is too stale for a use to come. No later use is for an earlier version."""
        newest = self._books.standing.newest_version
        if use_version > newest + MAX_OPEN:
            raise RejectedError(f"use_version {use_version} is too far ahead of the newest version, {newest}")
        self._raise_horizon(use_version)
        return self._books.horizon

    def _raise_horizon(self, version: int) -> None:
        """From now on uses are for this version: what is too stale for it can never be leased again."""
        if version <= self._books.horizon:
            return
        self._books.horizon = version
        self._keeper.condemn(self._books.index.older_than(self._books.oldest_version), "stale")
        self._keeper.sweep()
