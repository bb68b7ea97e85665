"""Grants chunks to actors, before they make them: by room, age of weights, pace and fair shares."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from minefleet_replay.engine.memory_state import ReplayState
from minefleet_replay.engine.transaction import TransactionManager
from minefleet_replay.state.deduplication import ChunkName
from minefleet_replay.state.lease_forecast import ForecastRow, needed_s


class Grant(NamedTuple):
    """Whether a chunk may be made."""

    granted: bool
    too_slow: bool = False
    """It is refused since nothing that its stream makes could be used, or hardly anything of it was."""
    ahead: bool = False
    """It is refused since others have had fewer steps."""
    task: str = ""
    """Of the episodes that its stream begins from now on."""


REFUSED = Grant(granted=False)


class ReservePath:
    """Decides about grants. Not thread-safe."""

    def __init__(self, transactions: TransactionManager, clock: Callable[[], float]) -> None:
        self._transactions = transactions
        self._clock = clock

    @property
    def _state(self) -> ReplayState:
        return self._transactions.state

    def reserve(
        self, policy_version: int, names: Sequence[ChunkName], closing: ForecastRow | None, longest_s: float
    ) -> tuple[list[Grant], int, int]:
        """Decides for each chunk if these weights may make it, and what room is left then: for theirs, for newer ones.

        Args:
            policy_version: Of the weights.
            names: The chunks.
            closing: When the next leases close, as far as is known.
            longest_s: How long a chunk may take.
        """
        if self._is_too_old(policy_version):
            for name in names:
                self._transactions.pacing.revoke(name)
            return [REFUSED] * len(names), 0, self._transactions.pacing.free_steps(self._state.index.usable_steps)
        lag = max(0, self._state.run_state.newest_version - policy_version)
        fresh_steps = self._state.limits.fresh_steps(lag)
        if self._transactions.balance is not None:
            self._transactions.balance.update(self._clock())
        grants = [self._reserve(name, fresh_steps, closing, longest_s) for name in names]
        free, held_steps = self._transactions.pacing.free_steps, self._state.index.usable_steps
        return grants, free(held_steps, fresh_steps), free(held_steps)

    def _is_too_old(self, policy_version: int) -> bool:
        state = self._state
        return state.is_stale(policy_version) or state.run_state.is_abandoned(policy_version, policy_version)

    def _reserve(self, name: ChunkName, fresh_steps: int, closing: ForecastRow | None, longest_s: float) -> Grant:
        pacing, now = self._transactions.pacing, self._clock()
        steps = self._can_make(name.stream, closing, longest_s, now)
        if self._state.is_begun(name):
            # Its room is taken already, or it is lost: refusing would only make its stream wait.
            chunk = self._state.index.find(name)
            pacing.renew(name, max(0, steps - (chunk.steps if chunk else 0)), now)
            return Grant(granted=True)
        was_granted = pacing.has_granted(name)
        if not was_granted:
            if not steps:
                return Grant(granted=False, too_slow=True)
            self._transactions.streams.wait(name.stream, now)
            if self._transactions.balance is not None and self._transactions.balance.is_ahead(name.stream):
                return Grant(granted=False, ahead=True)
        granted = pacing.reserve(name, steps, self._state.index.usable_steps, now, fresh_steps)
        sampler = self._transactions.sampler
        return Grant(granted, task=sampler.draw() if sampler and granted and not was_granted else "")

    def _can_make(self, stream: str, closing: ForecastRow | None, longest_s: float, now: float) -> int:
        """The most steps that a chunk of the stream may have before it is too stale for every lease; 0 to refuse it."""
        limits, streams = self._state.limits, self._transactions.streams
        step_s = streams.step_s(stream)
        fitting_steps = limits.chunk_steps if limits.chunk_steps * step_s <= longest_s else int(longest_s / step_s)
        if closing is None or fitting_steps == limits.chunk_steps:
            streams.fast_enough(stream)
            return max(limits.least_steps, fitting_steps)
        # A stream that has hardly time may make it more often than not, and is judged by that.
        least_s, wanted_s = limits.least_steps * step_s, needed_s(limits.least_steps, step_s)
        has_hardly_time = wanted_s > closing.longest_s and self._transactions.shares.loses_most(stream)
        if least_s > closing.longest_s or has_hardly_time:
            return limits.least_steps if streams.may_try(stream, wanted_s, now) else 0
        streams.fast_enough(stream)
        return max(limits.least_steps, min(int(closing.window_s / step_s), limits.chunk_steps))
