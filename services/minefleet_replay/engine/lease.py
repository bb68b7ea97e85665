"""Serves the learner: admits it, leases chunks, and takes acknowledgements and releases."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from minefleet.core.errors import ConfigError, FencedError, NotFoundError, OverloadedError, RejectedError
from minefleet.rpc.replay_types import Order, Position
from minefleet_replay.engine.memory_state import ReplayState
from minefleet_replay.engine.transaction import Transaction, TransactionManager
from minefleet_replay.state.chunk import Chunk, FragmentEntry
from minefleet_replay.state.deduplication import ChunkName
from minefleet_replay.state.lease_table import MAX_OPEN, Ending, OpenLease, ending_row
from minefleet_replay.state.ledger_totals import Amount
from minefleet_replay.state.step_fates_by_task import TRAINED
from minefleet_replay.storage.row_codec import FragmentRow, number_key, uses_row

logger = logging.getLogger(__name__)

BUSY_RETRY_S = 0.5
MAX_WAIT_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseRequest:
    """The request of a lease."""

    number: int
    steps: int
    use_version: int
    order: Order = "least_used"
    settings: str = ""
    """Of the iteration that it is for, JSON; empty where nothing differs from the configuration."""


class LeasePath:
    """Lends chunks to the learner of the newest epoch. Not thread-safe."""

    def __init__(self, transactions: TransactionManager, clock: Callable[[], float], rng: Random) -> None:
        self._transactions = transactions
        self._clock = clock
        self._rng = rng
        self._settings: str | None = None
        """Of the last lease; None for those that the store remembers."""

    @property
    def _state(self) -> ReplayState:
        return self._transactions.state

    def refuse_fenced(self, learner: Position) -> None:
        """Raises FencedError if a newer epoch has taken over."""
        epoch = self._state.run_state.epoch
        if learner.epoch < epoch:
            raise FencedError(f"epoch {learner.epoch} is fenced: epoch {epoch} has taken over")

    def admit(self, learner: Position) -> None:
        """Records the learner's position.

        Raises:
            FencedError: If a newer epoch has taken over.
        """
        self.refuse_fenced(learner)
        run_state = self._state.run_state
        if learner.epoch > run_state.epoch:
            self._take_over(learner.epoch)
        lineage = (learner.epoch, learner.resumed_version, learner.first_version)
        if learner.first_version and lineage != self._state.run_state.lineage:
            self._abandon(lineage)
        if learner.version > self._state.run_state.newest_version:
            self._observe_version(learner.version)

    def lease(self, wanted: LeaseRequest) -> list[Chunk] | None:
        """Leases chunks, or returns what the lease holds already; None while there are not enough.

        Raises:
            RejectedError: If a lease of that number was closed before, or its settings are none.
            OverloadedError: If too many leases are open.
        """
        leases = self._state.leases
        if wanted.number in leases.open:
            return self.chunks_in_lease(wanted.number)
        if wanted.number in leases.closed:
            raise RejectedError(f"lease {wanted.number} was {leases.closed[wanted.number]}; a lease needs a new number")
        if len(leases.open) >= MAX_OPEN:
            raise OverloadedError(f"{len(leases.open)} leases are open; ack or release one", BUSY_RETRY_S)
        self._take_settings(wanted)
        use_version = self._look_ahead(wanted.use_version)
        chunks = self._state.index.choose(wanted.steps, wanted.order, self._state.oldest_version, self._rng)
        if not chunks:
            return None
        self._transactions.lease_clock.enough(self._clock())
        if self._waits_for_more(use_version):
            return None
        self._record_answer(use_version)
        charged, max_reuse = tuple((chunk.id, chunk.uses) for chunk in chunks), self._state.limits.max_reuse
        self._open(OpenLease(wanted.number, use_version, charged, max_reuse), chunks)
        return self.chunks_in_lease(wanted.number)

    @property
    def patience_s(self) -> float:
        """When a lease that is refused may be granted although nothing has changed, seconds."""
        closing = self._transactions.lease_clock.forecast(self._clock())
        return MAX_WAIT_S if closing is None or not closing.at_most_in_s else closing.at_most_in_s

    def chunks_in_lease(self, number: int) -> list[Chunk]:
        """Copies of the chunks of an open lease, with their uses before it.

        Raises:
            NotFoundError: If no such lease is open.
        """
        lease = self._find(number)
        chunks = ((self._state.index[chunk_id], uses) for chunk_id, uses in lease.chunks)
        return [replace(chunk, uses=uses, fragments=list(chunk.fragments)) for chunk, uses in chunks]

    def close(self, number: int, ending: Ending) -> None:
        """Closes a lease: its uses are spent when it was acked, refunded when released. Repeatable.

        Raises:
            NotFoundError: If no such lease is open, and none was closed in this way in this epoch.
        """
        if self._state.leases.closed.get(number) == ending:
            return
        lease, change = self._find(number), self._transactions.change()
        since = self._state.leases.since.get(number)
        if since is not None:
            change.then(partial(self._transactions.metrics.lease_open.observe, self._clock() - since))
        if since is not None and ending == "acked":
            self._trained(change, lease, since)
        change.put("leases", number_key(number), ending_row(ending))
        for forgotten in self._state.leases.surplus():
            change.delete("leases", number_key(forgotten))
            change.then(partial(self._state.leases.forget, forgotten))
        change.then(partial(self._state.leases.close, number, ending))
        for chunk_id, _ in lease.chunks:
            self._give_back(change, self._state.index[chunk_id], leases=1, uses=int(ending == "acked"))
        self._transactions.commit(change)

    def quarantine(self, name: ChunkName, fragment: FragmentEntry) -> None:
        """Records that a leased fragment's bytes are corrupt.

        Raises:
            NotFoundError: If the fragment has left: its lease was closed meanwhile.
        """
        chunk = self._state.index.find(name)
        known = {one.number: one for one in chunk.fragments} if chunk is not None else {}
        if chunk is None or fragment.number not in known:
            raise NotFoundError(f"fragment {name.stream}/{fragment.sequence} has left: its lease was closed")
        if known[fragment.number].corrupt:
            return
        logger.warning("fragment %s/%d is corrupt; it is quarantined", name.stream, fragment.sequence)
        change = self._transactions.change()
        row = FragmentRow(name.stream, fragment._replace(corrupt=True), checksum=0, header=b"").to_row()
        change.put("meta", number_key(fragment.number), row)
        change.move("leased" if chunk.leases else "live", "corrupt", Amount(1, fragment.steps))
        change.then(partial(self._state.index.mark_corrupt, chunk, fragment))
        self._transactions.commit(change)

    def _take_settings(self, wanted: LeaseRequest) -> None:
        """Works by the settings of a lease from it on."""
        if wanted.settings == self._settings:
            return
        try:
            limits = self._state.limits.following(wanted.settings)
        except ConfigError as error:
            raise RejectedError(f"replay cannot work by the settings of lease {wanted.number}: {error}") from error
        if limits != self._state.limits:
            self._transactions.set_limits(limits)
            logger.info("from lease %d on, limits are %s", wanted.number, limits.live)
        self._settings = wanted.settings

    def _record_answer(self, use_version: int) -> None:
        clock, streams, now = self._transactions.lease_clock, self._transactions.streams, self._clock()
        clock.answered(use_version, now)
        closing = clock.forecast(now)
        if closing is not None:
            clock.be_patient(streams.unfit(closing), len(streams))

    def _waits_for_more(self, use_version: int) -> bool:
        """Whether a chunk that is cut would be too stale for the next lease, and may still come for this one."""
        now, limits, streams = self._clock(), self._state.limits, self._transactions.streams
        closing = self._transactions.lease_clock.forecast(now)
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
        lease = self._state.leases.open.get(number)
        if lease is None:
            ending = self._state.leases.closed.get(number, "never opened or is forgotten")
            raise NotFoundError(f"lease {number} is not open in epoch {self._state.run_state.epoch}: it was {ending}")
        return lease

    def _open(self, lease: OpenLease, chunks: list[Chunk]) -> None:
        change = self._transactions.change()
        change.put("leases", number_key(lease.number), lease.to_row())
        change.then(partial(self._state.leases.grant, lease, self._clock()))
        for chunk in chunks:
            if not chunk.leases:
                change.move("live", "leased", chunk.sound)
            change.then(partial(self._state.index.charge, chunk, leases=1))
        self._transactions.commit(change)
        for chunk in chunks:
            self._transactions.metrics.lease_staleness.observe(lease.use_version - chunk.oldest_version)
            self._transactions.metrics.lease_reuse.observe(chunk.uses)

    def _give_back(self, change: Transaction, chunk: Chunk, *, leases: int, uses: int) -> None:
        """Ends so many leases of a chunk, which spent so many uses; drops it when nothing more can come of it."""
        total = chunk.uses + uses
        change.then(partial(self._state.index.charge, chunk, uses=uses, leases=-leases))
        if uses:
            change.put("uses", number_key(chunk.id), uses_row(total))
            if not chunk.uses:
                change.then(partial(self._transactions.count, chunk.name.stream, chunk.fragments, TRAINED))
        if chunk.leases > leases:
            return
        change.move("leased", "live", chunk.sound)
        reason = self._transactions.drop_reason(chunk, total)
        if reason is not None:
            self._transactions.drop(change, chunk, reason, total)

    def _trained(self, change: Transaction, lease: OpenLease, leased_at: float) -> None:
        """Records how stale the acked chunks were when leased, and how long training on them took."""
        if self._transactions.balance is not None:
            change.then(partial(self._transactions.balance.trained, leased_at, self._clock()))
        for chunk in (self._state.index[chunk_id] for chunk_id, uses in lease.chunks if not uses):
            staleness = max(0, lease.use_version - chunk.oldest_version)
            change.then(partial(self._transactions.shares.used, chunk.fragments, staleness, leased_at - chunk.began_at))

    def _take_over(self, epoch: int) -> None:
        """A newer epoch begins: the leases of older ones are void, and what they charged is refunded."""
        change, state = self._transactions.change(), self._state
        for number in (*state.leases.open, *state.leases.closed):
            change.delete("leases", number_key(number))
        for chunk in [chunk for chunk in state.index if chunk.leases]:
            self._give_back(change, chunk, leases=chunk.leases, uses=0)
        change.then(state.leases.clear)
        change.then(state.forget_uses_to_come)
        change.then(self._transactions.lease_clock.taken_over)
        self._transactions.set_run_state(change, self._state.run_state.with_epoch(epoch))
        self._transactions.commit(change)
        logger.info("epoch %d has taken over", epoch)

    def _observe_version(self, version: int) -> None:
        """A newer version: what is too stale for it is dropped."""
        change = self._transactions.change()
        self._transactions.set_run_state(change, self._state.run_state.with_version(version))
        self._transactions.commit(change)
        self._transactions.lease_clock.published(version, self._clock())
        self._raise_horizon(version)

    def _abandon(self, lineage: tuple[int, int, int]) -> None:
        """The learner resumed: chunks acted by versions after its checkpoint are dropped."""
        change = self._transactions.change()
        self._transactions.set_run_state(
            change, self._state.run_state.resumed(lineage, self._state.limits.max_staleness)
        )
        self._transactions.commit(change)
        self._transactions.mark_dead(self._state.abandoned(), "abandoned")
        self._transactions.purge()

    def _look_ahead(self, use_version: int) -> int:
        """Drops what is too stale for a use to come. No later use is for an earlier version."""
        newest = self._state.run_state.newest_version
        if use_version > newest + MAX_OPEN:
            raise RejectedError(f"use_version {use_version} is too far ahead of the newest version, {newest}")
        self._raise_horizon(use_version)
        return self._state.horizon

    def _raise_horizon(self, version: int) -> None:
        """From now on uses are for this version: what is too stale for it can never be leased again."""
        if version <= self._state.horizon:
            return
        self._state.horizon = version
        self._transactions.mark_dead(self._state.index.older_than(self._state.oldest_version), "stale")
        self._transactions.purge()
