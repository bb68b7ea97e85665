"""The states of a pool's slots, independent of the processes that run their environments.

A slot is in one state:

    EMPTY   no episode                                reset → BUSY
    BUSY    a command is wanted or under way          its end, taken → READY; failure → EMPTY
    READY   the observation is there                  step, reset → BUSY; failure → EMPTY
"""

import time
from collections.abc import Iterable, Sequence

import numpy as np

from minefleet.config import WorkerConfig
from minefleet.core.schema import Schema
from minefleet.core.tree import Tree, flatten
from minefleet_actor.pool.circuit_breaker import Breaker
from minefleet_actor.pool.episode_seed import episode_seed
from minefleet_actor.pool.pool_results import Ready, Slots
from minefleet_env.process_messages import Command, EpisodeEnd, Failure, Kind, Reply
from minefleet_env.shared_slot_arrays import private

FAILED = int(Kind.FAILED)


class SlotState:
    """The state of a slot; the legal moves are in the module's docstring.

    Plain numbers: NumPy compares an array with a member of an enumeration five times more slowly.
    """

    EMPTY, BUSY, READY = range(3)


NAMES = ("EMPTY", "BUSY", "READY")
"""Of the states, for people."""


class SlotStateMachine:
    """Keeps the slots' states, the commands to pass on, and the news since the last `take`."""

    def __init__(
        self, schema: Schema, config: WorkerConfig, *, seed: int, actor_index: int, batched: bool = False
    ) -> None:
        num_slots = config.num_envs
        self._batched = batched
        self.arrays = private(schema.to_dict(), 0)
        """The pool's; none before it starts and after it has closed."""
        self.command = np.zeros(num_slots, np.uint8)
        """[N] uint8, each a `Command` that waits to be passed on."""
        self.breaker = Breaker(
            num_slots,
            max_consecutive_failures=config.max_consecutive_failures,
            circuit_breaker_cooldown_s=config.circuit_breaker_cooldown_s,
        )
        self._seed = seed
        self._given = dict[int, int]()
        """Slot -> the seed that its next environment gets, where somebody else chooses it."""
        self._actor_index = actor_index
        self._state = np.full(num_slots, SlotState.EMPTY, np.uint8)
        self._kind = np.zeros(num_slots, np.uint8)
        self._endings: dict[int, EpisodeEnd] = {}
        self._failures: dict[int, Failure] = {}
        self._episodes = np.zeros(num_slots, np.int64)
        self._unseeded = np.ones(num_slots, np.bool_)
        self._broken = np.zeros(num_slots, np.bool_)

    def step(self, slots: Slots, action: Tree) -> None:
        """Wants a step of each slot."""
        self._refuse(slots[self._state[slots] != SlotState.READY], "READY")
        for path, leaf in flatten(action).items():
            self.arrays.action[path][slots] = leaf
        self._state[slots] = SlotState.BUSY
        self.command[slots] = Command.STEP

    def reset(self, slots: Slots, seed: int | None = None, task: str = "") -> None:
        """Wants a new episode in each slot. A new environment gets the episode's seed; later ones go on from it."""
        if seed is not None:
            self._given.update(dict.fromkeys(slots.tolist(), seed))
        self._refuse(slots[self._state[slots] == SlotState.BUSY], "EMPTY or READY")
        self.arrays.seed[slots] = -1
        self.arrays.task[slots] = task.encode()
        for slot in slots.tolist():
            self._endings.pop(slot, None)
        self._episodes[slots] += 1
        for slot in slots[self._unseeded[slots]].tolist():
            self._sow(slot)
        self._state[slots] = SlotState.BUSY
        self.command[slots] = np.where(self._broken[slots], Command.REMAKE, Command.RESET)
        self._broken[slots] = False

    def renew(self, slots: Iterable[int]) -> None:
        """Records that the slots' environments are new ones, for the resets that wait or else for the next.

        The seed is there before they are made: some batches take it then.
        """
        for slot in slots:
            if self.command[slot] >= Command.RESET:
                self._sow(slot)
            else:
                self._unseeded[slot] = True
                self.arrays.seed[slot] = self._own_seed(slot, int(self._episodes[slot]))

    @property
    def has_results(self) -> bool:
        """Whether `take` would return anything."""
        return bool(self._kind.any())

    def record(self, reply: Reply, slots: range) -> None:
        """Records the results of a process's environments."""
        section = self._kind[slots.start : slots.stop]
        kinds = np.frombuffer(reply.kinds, np.uint8)
        np.maximum(section, kinds, out=section)
        if self._batched:
            # Steps that had to wait for resets of others are commanded again.
            command = self.command[slots.start : slots.stop]
            is_busy = self._state[slots.start : slots.stop] == SlotState.BUSY
            command[(kinds == Kind.NONE) & is_busy & (command == Command.NONE)] = Command.STEP
        for index, ending in reply.endings.items():
            self._endings[slots[index]] = ending
        for index, failure in reply.failures.items():
            self._fail(slots[index], failure)
            self._broken[slots[index]] = True
            self.breaker.fail([slots[index]], failure.text, time.monotonic())

    def lose(self, slots: Sequence[int], failure: Failure) -> None:
        """Records that a process has gone, with its environments. Slots without an episode have nothing to report.

        The slot that was at work, whose command was begun last, is the first to be reported.
        """
        for slot in sorted(slots, key=self.arrays.began_s.__getitem__, reverse=True):
            if self._state[slot] != SlotState.EMPTY:
                self._fail(slot, failure)
        self.command[slots] = Command.NONE
        self._broken[slots] = False

    def take(self, idle_s: float = 0.0) -> Ready:
        """Returns the news, which were waited for so long, and forgets them."""
        slots = np.flatnonzero(self._kind)
        kind = self._kind[slots]
        self._kind[slots] = Kind.NONE
        self._state[slots] = np.where(kind == FAILED, SlotState.EMPTY, SlotState.READY)
        terminated, truncated = self.arrays.terminated[slots], self.arrays.truncated[slots]
        over = slots[terminated | truncated]
        self.breaker.succeed(over)
        failures, self._failures = self._failures, {}
        endings = {slot: self._endings.pop(slot, EpisodeEnd()) for slot in (*over.tolist(), *failures)}
        begun = slots[kind == Kind.RESET].tolist()
        return Ready(
            slots=slots,
            kind=kind,
            reward=self.arrays.reward[slots],
            discounted_reward=self.arrays.discounted_reward[slots],
            duration=self.arrays.duration[slots],
            terminated=terminated,
            truncated=truncated,
            endings=endings,
            tasks={slot: self._endings[slot].task for slot in begun if slot in self._endings},
            failures=failures,
            idle_s=idle_s,
        )

    def _sow(self, slot: int) -> None:
        """Gives the slot's new environment the seed of the episode that it is to begin with."""
        self.arrays.seed[slot] = self._given.pop(slot, self._own_seed(slot, int(self._episodes[slot]) - 1))
        self._unseeded[slot] = False

    def _own_seed(self, slot: int, episode: int) -> int:
        return episode_seed(self._seed, self._actor_index, slot, episode)

    def _refuse(self, wrong: Slots, expected: str) -> None:
        if len(wrong):
            names = [NAMES[self._state[slot]] for slot in wrong]
            raise ValueError(f"slots {wrong.tolist()} must be {expected}, are {names}")

    def _fail(self, slot: int, failure: Failure) -> None:
        self._kind[slot] = Kind.FAILED
        self._failures[slot] = failure
        self._unseeded[slot] = True
        self.arrays.reward[slot] = 0.0
        self.arrays.terminated[slot] = self.arrays.truncated[slot] = False
