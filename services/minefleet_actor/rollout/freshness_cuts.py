"""Decides when fragments end before they are full: so that replay gets them while they may still be used.

For each slot there is a deadline, from what replay forecasts for the version that began its chunk, and how long a chunk
may take at all. Before anything is forecast, only that is known, and is the deadline. One that takes longer, with its
resets and slow steps, is due when its next step would pass the deadline: by how long the slot's steps take, and
`MARGIN_S` for the way to replay. Others are not, since without them no lease is filled; but where a step or a reset
takes much longer than steps do, the steps before it do not wait for it. A fragment is cut where it has `least_steps`,
or where its episode has ended. Where it is shorter, it goes on: its lease waits a while.

How long steps take is known twice: of the last few, for when the next one will end, and of many, for whether a slot is
slower than others. On busy cores a step waits now and then, and a cut for that would cost more than it saves.
A reset is no such hiccup: a fragment that could not go on in time after it ends before it, and a chunk that resets make
longer than it may be ends at its deadline.

Where a full chunk takes too long, a fragment starts only if its shortest form has time; else the slot waits for newer
weights, for a while.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from statistics import median_low

import numpy as np
from numpy.typing import NDArray

from minefleet_actor.replay_io.stream_router import StreamRouter
from minefleet_actor.rollout.fragment_recorder import Recorder

MARGIN_S = 0.03
"""From when a fragment is cut until replay has it."""
EWMA_WEIGHT, MAX_OUTLIER_RATIO = 0.25, 4.0
"""Weight of a new step in the mean duration of steps; a longer one counts as at most so many times the mean."""
PATIENCE_ITERATIONS = 2.0
"""Iterations that a slot without time waits for newer weights."""
USUAL_STEPS = 128
"""Steps in the longer mean."""
REPORT_RATIO = 2.0
"""Steps are reported anew when they take so many times as long as reported before, or the inverse."""
ALIKE_SHARE, HICCUP_RATIO = 0.95, 4.0
"""A slot whose chunks usually take less than such a share of their limit is like others, and the limit is little more
than they all take. One of them may take so many times as long as usually."""
REPORT_INTERVAL_S = 3.0
"""Interval between reports of every playing slot to replay, where slots wait for each other."""
STUCK_RATIO = 3.0
"""A slot plays no longer whose environment takes so many times as long as its resets do, and its steps."""
MAX_RESETS = 5
"""Durations of a slot's resets, of which the median counts: the first one is also that of starting it."""
LONG_RESET_S = 0.5
"""While a reset takes longer, or the last ones have, others have the room of the slot's next chunk."""
PACE, BALANCE = 1, 2
"""A slot that may not start lacks time, or waits for others to have as many steps."""
STEP_TIME_SLACK = 1.2
"""Steps are expected to take so much longer than they did."""

Slots = NDArray[np.intp]


class FreshnessCuts:
    """Deadlines of all slots. Not thread-safe: the loop's."""

    def __init__(
        self,
        router: StreamRouter,
        slots: int,
        *,
        least_steps: int,
        fragment_length: int,
        chunk_steps: int,
        enabled: bool = True,
        balanced: bool = False,
        paced: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Stores its arguments.

        Args:
            router: Know what replay forecasts, by the same clock.
            slots: How many there are.
            least_steps: In the shortest fragment that is cut.
            fragment_length: Steps in a full fragment.
            chunk_steps: In a full chunk.
            enabled: Otherwise fragments end when they are full, and start when replay grants their chunk.
            balanced: Whether slots wait for each other, so that replay must know which play.
            paced: Whether replay grants as many chunks as it has room for, and not any.
            clock: Seconds, monotonic.
        """
        self._router = router
        self._least_steps = least_steps
        self._fragment_length = fragment_length
        self._chunk_steps = chunk_steps
        self._enabled = enabled
        self.balanced = balanced
        self._gives_back = enabled and paced
        self._clock = clock
        self._report_at = -math.inf
        self._resets = [deque[float](maxlen=MAX_RESETS) for _ in range(slots)]
        """Durations of each slot's last resets."""
        self._reset_s = np.zeros(slots)
        """Their medians; 0 where none is known."""
        self._reset_until = np.full(slots, -np.inf)
        """When the reset of a slot's environment is expected to be over."""
        self._chunk_resets_s = np.zeros(slots)
        """That resets have taken in the chunk that a slot is making."""
        self._is_open = np.zeros(slots, np.bool_)
        self._deadline = np.full(slots, np.inf)
        self._earliest = math.inf
        """No deadline is before it: a number to compare with, where each turn would compare arrays."""
        self._longest_s = np.full(slots, np.inf)
        self._began_at = np.zeros(slots)
        self._steps_before = np.zeros(slots, np.intp)
        """In the chunk that a slot is making, before the open fragment."""
        self._commanded_at = np.full(slots, np.inf)
        self._step_s, self._usual_s, self._reported_s = np.zeros(slots), np.zeros(slots), np.zeros(slots)
        self._steps = np.zeros(slots, np.intp)
        self._waits_until = np.full(slots, np.inf)
        self._waits_with = np.zeros(slots, np.int64)
        self._forecasts = 0
        self.lacks = np.zeros(slots, np.int8)
        """[S] int8: `PACE` or `BALANCE` of slots that may not start for it."""

    def stepped(self, slots: Slots, seconds: NDArray[np.float64], recorder: Recorder) -> None:
        """Records the durations of steps, [n]. Where nothing is cut they are not reported: grants depend on them."""
        if not self._enabled:
            return
        known = self._step_s[slots]
        seconds = np.where(known > 0, np.minimum(seconds, MAX_OUTLIER_RATIO * known), seconds)
        step_s = np.where(known > 0, known + EWMA_WEIGHT * (seconds - known), seconds)
        self._step_s[slots] = step_s
        self._steps[slots] += 1
        usual_s = self._usual_s[slots]
        usual_s += (seconds - usual_s) / np.minimum(self._steps[slots], USUAL_STEPS)
        self._usual_s[slots] = usual_s
        for slot in slots[_differ(usual_s, self._reported_s[slots])].tolist():
            self._reported_s[slot] = self._usual_s[slot]
            self._router.report_pace(slot, self.step_s(slot), recorder.plays(slot))

    def were_reset(self, slots: Slots) -> None:
        """The environments of slots have been reset."""
        self._reset_until[slots] = -math.inf
        for slot, seconds in zip(slots.tolist(), (self._clock() - self._commanded_at[slots]).tolist(), strict=True):
            self._resets[slot].append(seconds)
            self._reset_s[slot] = median_low(self._resets[slot])
            self._chunk_resets_s[slot] += seconds

    def long_resets(self, resetting: NDArray[np.bool_]) -> list[int]:
        """The slots, among those that are `resetting` [S], whose room others are to have meanwhile."""
        takes_s = np.maximum(self._clock() - self._commanded_at, self._reset_s)
        return np.flatnonzero(resetting & (takes_s > LONG_RESET_S)).tolist() if self._gives_back else []

    def report(self, working: NDArray[np.bool_], recorder: Recorder) -> None:
        """Reports to replay every few seconds which slots play; `working` [S]: those whose environment is at work."""
        if not self.balanced or (now := self._clock()) < self._report_at:
            return
        self._report_at = now + REPORT_INTERVAL_S
        longest_s = STUCK_RATIO * np.maximum(self._step_s, self._reset_s)
        plays = ~working | (now - self._commanded_at <= longest_s)
        for slot in np.flatnonzero(plays).tolist():
            self._router.report_pace(slot, self.step_s(slot), recorder.plays(slot))

    def step_s(self, slot: int) -> float:
        """The usual duration of the slot's step, seconds; 0 where it is not known yet."""
        return float(self._usual_s[slot])

    def command_age_s(self, slot: int) -> float:
        """Seconds since the slot's environment was given something to do."""
        return self._clock() - float(self._commanded_at[slot])

    def began(self, slot: int) -> None:
        """The slot has begun a fragment."""
        self._is_open[slot] = self._enabled
        if self._enabled:
            if not self._router.forecast(slot).whole_fragments:
                self._began_at[slot], self._chunk_resets_s[slot] = self._clock(), 0.0
            self._update_deadline(slot)
        self._waits_until[slot] = math.inf
        self.lacks[slot] = 0

    def ended(self, slot: int) -> None:
        """The slot has no open fragment."""
        self._is_open[slot], self._deadline[slot] = False, math.inf

    def has_time(self, slot: int) -> bool:
        """Whether another fragment fits into the chunk that the slot is making."""
        goes_on_at = max(self._clock(), self._reset_until[slot])
        takes_s = STEP_TIME_SLACK * self._least_steps * self._step_s[slot] + MARGIN_S
        return bool(goes_on_at + takes_s <= self._deadline[slot])

    def due(self, slots: Slots, recorder: Recorder) -> NDArray[np.bool_]:
        """[n] bool: the open fragments of which slots are to end before the next step."""
        if not self._may_be_due(STEP_TIME_SLACK * float(self._step_s.max())):
            return np.zeros(len(slots), np.bool_)
        return self._due(slots, recorder)

    def begin_reset(self, slot: int, recorder: Recorder) -> bool:
        """Records that the slot's environment is reset now. Returns whether its open fragment ends before that."""
        self._update()
        self._reset_until[slot] = self._clock() + self._reset_s[slot]
        return bool(self._due(np.array([slot]), recorder)[0])

    def commands_sent(self, slots: Slots) -> None:
        """The environments of slots were given something to do."""
        self._commanded_at[slots] = self._clock()

    def overdue(self, working: NDArray[np.bool_], recorder: Recorder) -> list[int]:
        """The slots, among those that are `working` [S], whose open fragment cannot wait for their environment."""
        if not self._may_be_due(0.0):
            return []
        now = self._clock()
        is_due = working & (now + MARGIN_S > self._deadline)
        is_late = now - self._commanded_at > MAX_OUTLIER_RATIO * np.maximum(self._step_s, MARGIN_S)
        is_due &= is_late | self._takes_too_long(recorder)
        return [slot for slot in np.flatnonzero(is_due).tolist() if self._may_be_cut(slot, recorder)]

    def may_start(self, slot: int, version: int, *, is_granted: bool) -> bool:
        """Whether the slot may begin a fragment with this version; waits for a newer one where it has no time."""
        verdict = self._router.verdict(slot)
        if not is_granted:
            self.lacks[slot] = PACE if verdict.too_slow else BALANCE if verdict.ahead else 0
        now, step_s = self._clock(), self.step_s(slot)
        longest_s = self._router.forecast(slot).longest_s
        if not is_granted or not self._enabled or self._chunk_steps * step_s <= longest_s:
            return is_granted
        if STEP_TIME_SLACK * self._least_steps * step_s + MARGIN_S <= self._router.time_left_s(slot, version, now):
            return True
        if math.isinf(self._waits_until[slot]):
            self._waits_until[slot] = now + PATIENCE_ITERATIONS * self._router.interval_s(slot)
            self._waits_with[slot] = version
        may_start = bool(now >= self._waits_until[slot] or version > self._waits_with[slot])
        self.lacks[slot] = 0 if may_start else PACE
        return may_start

    def _due(self, slots: Slots, recorder: Recorder) -> NDArray[np.bool_]:
        ends_at = np.maximum(self._clock(), self._reset_until[slots]) + STEP_TIME_SLACK * self._step_s[slots]
        is_due: NDArray[np.bool_] = ends_at + MARGIN_S > self._deadline[slots]
        if not is_due.any():
            return is_due
        is_due &= self._takes_too_long(recorder)[slots]
        for at in np.flatnonzero(is_due):
            is_due[at] = self._may_be_cut(int(slots[at]), recorder)
        return is_due

    def _may_be_due(self, step_s: float) -> bool:
        """Whether some deadline is over after a step that takes so long. Reads new forecasts."""
        self._update()
        after = self._clock() + step_s + MARGIN_S
        if after > self._earliest:
            self._earliest = float(self._deadline.min())
        return after > self._earliest

    def _takes_too_long(self, recorder: Recorder) -> NDArray[np.bool_]:
        """[S] bool: the slots whose chunk will have taken longer than it may when it is full."""
        left = np.maximum(self._chunk_steps - self._steps_before - recorder.length, 0)
        now, usual_s = self._clock(), self._chunk_steps * self._usual_s
        goes_on_at = np.maximum(now, self._reset_until)
        expected_s: NDArray[np.float64] = goes_on_at - self._began_at + left * self._step_s
        resets_s = self._chunk_resets_s + goes_on_at - now
        is_alike = (usual_s <= ALIKE_SHARE * self._longest_s) & (usual_s + resets_s <= self._longest_s)
        hiccup_s = np.where(is_alike, HICCUP_RATIO * usual_s, 0.0)
        takes_too_long: NDArray[np.bool_] = expected_s > np.maximum(self._longest_s, hiccup_s)
        return takes_too_long

    def _may_be_cut(self, slot: int, recorder: Recorder) -> bool:
        steps = recorder.length[slot]
        return bool(steps >= self._least_steps or (steps > 0 and recorder.is_done(slot)))

    def _update(self) -> None:
        """Reads new forecasts."""
        forecasts = self._router.forecasts
        if forecasts != self._forecasts:
            self._forecasts = forecasts
            for slot in np.flatnonzero(self._is_open).tolist():
                self._update_deadline(slot)

    def _update_deadline(self, slot: int) -> None:
        deadline, longest_s, whole = self._router.forecast(slot)
        self._deadline[slot] = deadline if deadline < math.inf else self._began_at[slot] + longest_s
        self._earliest = min(self._earliest, float(self._deadline[slot]))
        self._longest_s[slot], self._steps_before[slot] = longest_s, whole * self._fragment_length


def _differ(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether one is more than `REPORT_RATIO` times the other."""
    return (one > REPORT_RATIO * other) | (REPORT_RATIO * one < other)
