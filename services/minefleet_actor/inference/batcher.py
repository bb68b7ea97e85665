"""Decides for slots in batches, while the loop records and steps others.

    loop ── want ──▶ wanted ── run, decide ──▶ inference ──▶ decided ── take ──▶ loop

Wanted    filled by the loop; emptied by the thread of `run`, which takes all of it, up to the largest batch, as soon as
          it is free and `least` are wanted, or the first has waited for `timeout_s`.
Decided   filled by the thread, emptied by the loop, which `decided` wakes. Both hold each slot at most once.
Weights   newer ones wait for the running batch to end.

Where there is no thread, the loop itself calls `decide` for a batch at a time, as soon as `due_s` have passed. Where
nothing is to be waited for either, `want` decides before it returns, without a queue.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minefleet.core.tree import Tree
from minefleet_actor.inference.policy_outputs import Mask, PolicyStep, Slots
from minefleet_actor.inference.policy_runner import PolicyRunner


class InferenceBatcher:
    """The slots that want a decision, and the decisions.

    Args:
        inference: Computes the batches.
        obs: What all slots see, a tree of [S, ...]; a slot's row is read between its `want` and its decision.
        least: Slots that start a batch, >= 1.
        timeout_s: Longest wait for more, seconds.
        threaded: Whether `run` computes, in a thread of its own.
        timed: Surrounds the computation of so many slots.
        decided: Called whenever there is something to take or newer weights are in use; by the thread, if any.
    """

    def __init__(
        self,
        inference: PolicyRunner,
        obs: Callable[[], Tree],
        *,
        least: int = 1,
        timeout_s: float = 0.0,
        threaded: bool = False,
        timed: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext(),
        decided: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_decided = decided
        self._inference = inference
        self._obs = obs
        self._least = min(least, inference.largest)
        self._timeout_s = timeout_s
        self.is_threaded = threaded
        self._timed = timed
        self._is_patient = threaded or timeout_s > 0
        self._changed = threading.Condition()
        self._wanted: deque[tuple[int, bool, bool]] = deque()
        self._since_s = 0.0
        self._decided: deque[PolicyStep] = deque()
        self._weights: Sequence[tuple[Mapping[str, NDArray[Any]], int]] = ()
        self._busy = self._closed = False

    def want(self, slots: Slots, keeps: Mask, begins: Mask) -> None:
        """Asks for decisions.

        Args:
            slots: [n], none of which waits for one already.
            keeps: [n] bool; where False only the value of what the slot sees is wanted.
            begins: [n] bool; where True the recurrent state before the step is wanted, too.
        """
        if not self._is_patient:
            for start in range(0, len(slots), self._inference.largest):
                part = slice(start, start + self._inference.largest)
                self._decide(slots[part], keeps[part], begins[part])
        elif len(slots):
            with self._changed:
                self._since_s = self._since_s if self._wanted else time.monotonic()
                self._wanted.extend(zip(slots.tolist(), keeps.tolist(), begins.tolist(), strict=True))
                self._changed.notify_all()

    def swap(self, *weights: tuple[Mapping[str, NDArray[Any]], int]) -> None:
        """Uses newer weights, each with its version, from the next batch on; second, those of canary slots."""
        with self._changed:
            self._weights = weights
            self._changed.notify_all()
        if not self.is_threaded:
            self._take_weights()

    @property
    def due_s(self) -> float:
        """Seconds until a batch is due for `decide`; infinite where none is wanted, or the thread decides."""
        patience_s = None if self.is_threaded else self._patience_s()
        return math.inf if patience_s is None else patience_s

    def decide(self) -> None:
        """Computes a batch if one is due. The loop's, where there is no thread; nothing happens where there is."""
        if self.due_s == 0:
            self._compute()

    @property
    def has_decided(self) -> bool:
        """Whether there is something to take."""
        return bool(self._decided)

    def take(self) -> list[PolicyStep]:
        """Returns what was decided, and forgets it."""
        with self._changed:
            decided, self._decided = list(self._decided), deque()
        return decided

    def run(self) -> None:
        """Decides until closed; where the loop does that, ends at once."""
        while self.is_threaded and self._wait():
            self._take_weights()
            if self._wanted:
                self._compute()
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def close(self) -> None:
        """Ends `run` once the running batch is decided. What is wanted then is not decided any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._busy)
            self._wanted.clear()

    def _wait(self) -> bool:
        """Waits for a batch or weights; says whether to go on."""
        with self._changed:
            while not self._closed and not self._weights and (left_s := self._patience_s()) != 0:
                self._changed.wait(left_s)
            self._busy = not self._closed
            return self._busy

    def _patience_s(self) -> float | None:
        """Seconds to wait for more; None until something is wanted, 0 when a batch is due."""
        if not self._wanted:
            return None
        if len(self._wanted) >= self._least:
            return 0.0
        return max(self._since_s + self._timeout_s - time.monotonic(), 0.0)

    def _take_weights(self) -> None:
        with self._changed:
            taken, self._weights = self._weights, ()
        for is_canary, (weights, version) in enumerate(taken):
            self._inference.swap(weights, version, canary=bool(is_canary))
        if taken:
            self._on_decided()

    def _compute(self) -> None:
        with self._changed:
            rows = [self._wanted.popleft() for _ in range(min(len(self._wanted), self._inference.largest))]
        self._decide(*(np.array(column) for column in zip(*sorted(rows), strict=True)))

    def _decide(self, slots: Slots, keeps: Mask, begins: Mask) -> None:
        with self._timed(len(slots)):
            decision = self._inference.decide(slots, self._obs(), keeps=keeps, begins=begins)
        with self._changed:
            self._decided.append(decision)
        self._on_decided()
