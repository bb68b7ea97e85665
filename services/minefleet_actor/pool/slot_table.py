"""A pool of environments, and the state of its slots, independent of the processes that run their environments.

A slot is in one state:

    EMPTY   no episode                                reset → BUSY
    BUSY    a command is wanted or under way          its end, taken → READY; failure → EMPTY
    READY   the observation is there                  step, reset → BUSY; failure → EMPTY
"""

import abc
import time
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from minefleet.config import EnvConfig, WorkerConfig
from minefleet.core.schema import Schema
from minefleet.core.tree import Tree, flatten, unflatten
from minefleet_actor.pool.circuit_breaker import Breaker
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


class SlotTable:
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


class Pool(abc.ABC):
    """Environments behind numbered slots.

    A slot has news only of what it was asked to do, or of a failure. A failure takes nothing but its slot's episode:
    the failed step has no result, and the slot wants a reset. Environments are replaced without being asked, after
    failures and between episodes; a reset then takes as long as that does.
    """

    def __init__(
        self,
        env_config: EnvConfig,
        schema: Schema,
        worker_config: WorkerConfig,
        *,
        seed: int,
        actor_index: int,
        frame_shape: Sequence[int] | None = None,
        discount: float = 1.0,
    ) -> None:
        """Starts nothing yet. `discount` is γ between the environment's own steps within a step."""
        self._env_config = env_config
        self._schema = schema.to_dict()
        self._frame_shape = frame_shape
        self._discount = discount
        self._book = SlotTable(schema, worker_config, seed=seed, actor_index=actor_index, batched=env_config.batched)

    @property
    def num_slots(self) -> int:
        """Number of environments."""
        return len(self._book.command)

    @property
    def obs(self) -> Tree:
        """Tree of [num_slots, ...]: each slot's latest observation, until its next command."""
        return unflatten(self._book.arrays.obs)

    @property
    def cooling_down(self) -> int:
        """Number of slots that failed so often that they are left alone for a while."""
        return self._book.breaker.cooling_down(time.monotonic())

    @property
    def hosts(self) -> Mapping[str, int]:
        """The number of slots that each host plays, by its name; none where the pool runs the environments itself."""
        return {}

    @property
    def rests_until_s(self) -> NDArray[np.float64]:
        """[num_slots] float64: when each slot's pause after failures is over, on the monotonic clock."""
        return self._book.breaker.until_s

    @property
    def frames(self) -> NDArray[np.uint8]:
        """[num_slots, H, W, 3] uint8: what each filmed slot renders, until its next command; no pixels if none does."""
        return self._book.arrays.frame

    def begun(self, slot: int) -> tuple[int, str]:
        """The seed, -1 for none, and the task with which a slot's latest reset was asked for."""
        return int(self._book.arrays.seed[slot]), bytes(self._book.arrays.task[slot]).decode()

    def film(self, slot: int, on: bool) -> None:
        """Makes a slot render its frames from its next command on, or no longer."""
        if on and not self.is_filmed(slot):
            self._book.arrays.frame[slot] = 0  # It may be an old one.
        self._book.arrays.film[slot] = on

    def is_filmed(self, slot: int) -> bool:
        """Whether a slot renders its frames."""
        return bool(self._book.arrays.film[slot])

    def step(self, slots: Slots, action: Tree) -> None:
        """Asks for a step of each slot, from the next `wait` on; `action` is a tree of [len(slots), ...]."""
        self._book.step(slots, action)

    def reset(self, slots: Slots, seed: int | None = None, task: str = "") -> None:
        """Asks for a new episode in each slot, from the next `wait` on. No slot is ever reset without being asked.

        It begins when the environment is there, its pause after failures is over and `max_resets_at_once` allows it.
        A seed is for an environment that has not played yet; without one the pool chooses it. Without a task, the
        environments choose.
        """
        self._book.reset(slots, seed, task)

    @abc.abstractmethod
    def start(self) -> None:
        """Starts making the environments, and returns when one is made. Raises `EnvStartError` if one fails before."""

    @abc.abstractmethod
    def wait(self, timeout_s: float) -> Ready:
        """Waits until a slot has news, `wake` is called or the time is over. Raises `EnvGaveUpError`."""

    @abc.abstractmethod
    def wake(self) -> None:
        """Makes `wait` return, the next one if none is under way. May be called from any thread, at any time."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends everything the pool has started. May be called again."""


def episode_seed(seed: int, actor_index: int, slot: int, episode: int) -> int:
    """The seed of an environment whose first episode is the slot's `episode`, counted from 0; in [0, 2³¹)."""
    sequence = np.random.SeedSequence(seed, spawn_key=(actor_index, slot, episode))
    return int(sequence.generate_state(1)[0] >> 1)
