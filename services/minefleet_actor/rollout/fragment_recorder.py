"""Turns steps into fragments, exactly at every boundary.

The buffers hold `fragment_length` rows per environment slot; all slots of a batch are written at once.

Shape legend: S = slots, T = fragment_length, n = slots in a batch.

A step is written in two halves: `act` when the policy decides, `result` when the environment answers. Its `next_value`
comes from whichever forward pass first sees the following observation: the next decision, a look at the final
observation of a truncated episode, or a look at the observation after a full fragment.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minefleet.core.fragment import Fragment
from minefleet.core.schema import Schema, zeros
from minefleet.core.tree import Tree, flatten, tree_map, unflatten
from minefleet_actor.rollout.reward_scale_clip import Shape, unchanged

Slots = NDArray[np.intp]
Array = NDArray[Any]


class Recorder:
    """The open fragment of every slot. `shape_reward` makes what is trained on from the environment's rewards."""

    def __init__(self, schema: Schema, slots: int, fragment_length: int, shape_reward: Shape = unchanged) -> None:
        self._shape = (slots, fragment_length)
        rows = slots * fragment_length
        self._shape_reward = shape_reward
        self.fragment_length = fragment_length
        self.length = np.zeros(slots, np.intp)
        self._obs = zeros(schema.obs, rows)
        self._action = zeros(schema.action, rows)
        self._arrays: dict[str, Array] = {
            name: np.zeros(rows, dtype)
            for name, dtype in (
                ("reward", np.float32),
                ("terminated", np.bool_),
                ("truncated", np.bool_),
                ("first", np.bool_),
                ("crash", np.bool_),
                ("behaviour_logp", np.float32),
                ("behaviour_value", np.float32),
                ("next_value", np.float32),
                ("policy_version", np.uint32),
                ("duration", np.uint32),
            )
        }
        self._cuts: list[dict[int, Tree]] = [{} for _ in range(slots)]
        """By step, the observations after it that the fragment needs besides those it acted on."""
        self._state: list[Tree] = [{} for _ in range(slots)]
        self._tasks: list[Counter[str]] = [Counter() for _ in range(slots)]
        """The steps of each task before the one that is played now."""
        self._task = [("", 0)] * slots
        """The task that is played, and the step of the fragment that it began with."""
        self.pending = np.zeros(slots, np.bool_)
        """[S] bool: the last step's `next_value` is still to be seen."""

    def begin(self, slot: int, recurrent_state: Tree) -> None:
        """Opens a fragment whose first step will be computed from this state."""
        self.length[slot] = 0
        self._state[slot] = recurrent_state
        self._cuts[slot] = {}
        self._tasks[slot].clear()
        self._task[slot] = self._task[slot][0], 0

    def play(self, slot: int, task: str) -> None:
        """The slot's steps are of this task from now on."""
        if task != self._task[slot][0]:
            before, since = self._task[slot]
            self._tasks[slot][before] += int(self.length[slot]) - since
            self._task[slot] = task, int(self.length[slot])

    def task(self, slot: int) -> str:
        """The task that most steps of the open fragment were played in."""
        task, since = self._task[slot]
        steps = self._tasks[slot] + Counter({task: int(self.length[slot]) - since})
        return max(steps, key=lambda name: steps[name], default=task)

    def plays(self, slot: int) -> str:
        """The task of the slot's episode."""
        return self._task[slot][0]

    def see(self, slots: Slots, value: Array) -> None:
        """Records V of the slots' newest observations, [n] float32: the `next_value` of the steps that led to them."""
        waiting = self.pending[slots]
        slots, value = slots[waiting], value[waiting]
        self._arrays["next_value"][self._rows(slots, self.length[slots] - 1)] = value
        self.pending[slots] = False

    def act(
        self, slots: Slots, obs: Tree, action: Tree, logp: Array, value: Array, first: Array, version: Array
    ) -> None:
        """Writes the policy's half of the next step of each slot.

        Args:
            slots: [n].
            obs: Tree of [S, ...]: what all slots see. Only the rows of `slots` are read.
            action: Tree of [n, ...].
            logp: [n].
            value: [n].
            first: [n].
            version: [n], that has decided.

        Raises:
            ValueError: If the fragment of a slot is full.
        """
        at = self._rows(slots, self.length[slots])
        tree_map(lambda target, source: target.__setitem__(at, source[slots]), self._obs, obs)
        tree_map(lambda target, source: target.__setitem__(at, source), self._action, action)
        for name, row in (
            ("behaviour_logp", logp),
            ("behaviour_value", value),
            ("first", first),
            ("policy_version", version),
        ):
            self._arrays[name][at] = row

    def result(
        self, slots: Slots, reward: Array, terminated: Array, truncated: Array, duration: Array | int = 1
    ) -> None:
        """Writes the environment's half: the steps now count.

        Args:
            slots: [n].
            reward: [n], discounted from the step's start.
            terminated: [n].
            truncated: [n].
            duration: [n], how many steps of its own the environment took.
        """
        at = self._rows(slots, self.length[slots])
        for name, row in (
            ("reward", self._shape_reward(reward)),
            ("terminated", terminated),
            ("truncated", truncated & ~terminated),
            ("duration", duration),
            ("crash", False),
            ("next_value", 0.0),
        ):
            self._arrays[name][at] = row
        self.pending[slots] = ~terminated
        self.length[slots] += 1

    def cut(self, slot: int, obs: Tree) -> None:
        """Keeps the observation after the last step, unless that is terminated, or it is kept already."""
        if self.length[slot] and self._lacks_end(slot):
            self._cuts[slot][int(self.length[slot]) - 1] = tree_map(np.array, obs)

    def fail(self, slot: int) -> None:
        """Drops the step in flight, if any, and marks the last good step of the episode as cut by a failure."""
        if self.length[slot] == 0 or self.is_done(slot):
            return
        last = self._last(slot)
        self._arrays["truncated"][last] = True
        self._arrays["crash"][last] = True

    def close(self, slot: int, after: Tree | None = None) -> Fragment | None:
        """Ends the open fragment and returns a copy; None when it has no step.

        Args:
            slot: The slot.
            after: Observation after the last step; needed unless that step ended its episode and it is kept already.
        """
        steps = int(self.length[slot])
        if steps == 0:
            return None
        if after is not None:
            self.cut(slot, after)
        elif self._lacks_end(slot):
            raise ValueError(f"the fragment of slot {slot} needs the observation after its last step")
        fragment = self._copy(slot, steps)
        self.begin(slot, {})
        self.pending[slot] = False
        return fragment

    def split(self, slot: int, state: Tree) -> Fragment:
        """Ends the open fragment before the step in flight, with which the next one begins; returns a copy of it.

        Args:
            slot: The slot; its fragment has a step.
            state: Recurrent state before the step in flight.
        """
        in_flight, first = self._rows(slot, self.length[slot]), self._rows(slot, 0)
        fragment = self.close(slot, self.acted_on(slot))
        assert fragment is not None, f"the fragment of slot {slot} has no step"
        for buffer in (*flatten(self._obs).values(), *flatten(self._action).values(), *self._arrays.values()):
            buffer[first] = buffer[in_flight]
        self._state[slot] = state
        return fragment

    def in_flight(self, slot: int) -> tuple[int, bool]:
        """Of the step in flight: the version that decided it, and whether it begins an episode."""
        row = self._rows(slot, self.length[slot])
        return int(self._arrays["policy_version"][row]), bool(self._arrays["first"][row])

    def last_decision(self, slot: int, *, in_flight: bool) -> tuple[Tree, float, int] | None:
        """The action, value and version of the slot's newest step, which is in flight or done; None without one."""
        step = int(self.length[slot]) - (not in_flight)
        if not 0 <= step < self.fragment_length:
            return None
        row = self._rows(slot, step)
        action = tree_map(lambda buffer: buffer[row], self._action)
        return action, float(self._arrays["behaviour_value"][row]), int(self._arrays["policy_version"][row])

    def is_full(self, slot: int) -> bool:
        """Whether the open fragment has all its steps."""
        return bool(self.length[slot] == self.fragment_length)

    def is_within_fragments(self) -> bool:
        """Whether some open fragment has steps and lacks others."""
        return bool(np.any((self.length > 0) & (self.length < self.fragment_length)))

    def is_done(self, slot: int) -> bool:
        """Whether the last step of the open fragment, which has one, has ended its episode."""
        last = self._last(slot)
        return bool(self._arrays["terminated"][last] or self._arrays["truncated"][last])

    def acted_on(self, slot: int) -> Tree:
        """The observation of the step in flight."""
        row = self._rows(slot, self.length[slot])
        return tree_map(lambda buffer: buffer[row], self._obs)

    def _lacks_end(self, slot: int) -> bool:
        """Whether the observation after the last step is needed, and not kept yet."""
        is_kept = int(self.length[slot]) - 1 in self._cuts[slot]
        return not is_kept and not self._arrays["terminated"][self._last(slot)]

    def _last(self, slot: int) -> Any:
        """The row of the slot's last step."""
        return self._rows(slot, self.length[slot] - 1)

    def _rows(self, slots: Slots | int, steps: Slots | int) -> Any:
        """The rows of these steps of the slots: buffers have one axis of rows, along which NumPy copies much faster.

        Raises:
            ValueError: If a slot has no such step.
        """
        return np.ravel_multi_index((slots, steps), self._shape)

    def _copy(self, slot: int, steps: int) -> Fragment:
        start = slot * self.fragment_length

        def rows(buffer: Array) -> Array:
            return buffer[start : start + steps].copy()

        cuts, arrays = self._cuts[slot], {name: rows(buffer) for name, buffer in self._arrays.items()}
        if np.all(arrays["duration"] == 1):
            del arrays["duration"]
        return Fragment(
            obs=tree_map(rows, self._obs),
            action=tree_map(rows, self._action),
            cut_index=np.array([*cuts], np.int32),
            cut_obs=_stack(cuts.values(), self._obs),
            recurrent_state=self._state[slot],
            **arrays,
        )


def _stack(trees: Iterable[Tree], like: Tree) -> Tree:
    """Stacks rows into a tree of [K, ...]; K may be 0."""
    rows = [flatten(tree) for tree in trees]
    return unflatten(
        {
            path: np.stack([row[path] for row in rows]) if rows else buffer[:0].copy()
            for path, buffer in flatten(like).items()
        }
    )
