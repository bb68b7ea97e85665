"""The pool of environments that the actor plays with, whatever runs them: in this process, in others, or on hosts."""

import abc
import time
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from minefleet.config import EnvConfig, WorkerConfig
from minefleet.core.schema import Schema
from minefleet.core.tree import Tree, unflatten
from minefleet_actor.pool.pool_results import Ready, Slots
from minefleet_actor.pool.slot_state_machine import SlotStateMachine


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
        self._slot_states = SlotStateMachine(
            schema, worker_config, seed=seed, actor_index=actor_index, batched=env_config.batched
        )

    @property
    def num_slots(self) -> int:
        """Number of environments."""
        return len(self._slot_states.command)

    @property
    def obs(self) -> Tree:
        """Tree of [num_slots, ...]: each slot's latest observation, until its next command."""
        return unflatten(self._slot_states.arrays.obs)

    @property
    def cooling_down(self) -> int:
        """Number of slots that failed so often that they are left alone for a while."""
        return self._slot_states.breaker.cooling_down(time.monotonic())

    @property
    def hosts(self) -> Mapping[str, int]:
        """The number of slots that each host plays, by its name; none where the pool runs the environments itself."""
        return {}

    @property
    def rests_until_s(self) -> NDArray[np.float64]:
        """[num_slots] float64: when each slot's pause after failures is over, on the monotonic clock."""
        return self._slot_states.breaker.until_s

    @property
    def frames(self) -> NDArray[np.uint8]:
        """[num_slots, H, W, 3] uint8: what each filmed slot renders, until its next command; no pixels if none does."""
        return self._slot_states.arrays.frame

    def begun(self, slot: int) -> tuple[int, str]:
        """The seed, -1 for none, and the task with which a slot's latest reset was asked for."""
        return int(self._slot_states.arrays.seed[slot]), bytes(self._slot_states.arrays.task[slot]).decode()

    def film(self, slot: int, on: bool) -> None:
        """Makes a slot render its frames from its next command on, or no longer."""
        if on and not self.is_filmed(slot):
            self._slot_states.arrays.frame[slot] = 0  # It may be an old one.
        self._slot_states.arrays.film[slot] = on

    def is_filmed(self, slot: int) -> bool:
        """Whether a slot renders its frames."""
        return bool(self._slot_states.arrays.film[slot])

    def step(self, slots: Slots, action: Tree) -> None:
        """Asks for a step of each slot, from the next `wait` on; `action` is a tree of [len(slots), ...]."""
        self._slot_states.step(slots, action)

    def reset(self, slots: Slots, seed: int | None = None, task: str = "") -> None:
        """Asks for a new episode in each slot, from the next `wait` on. No slot is ever reset without being asked.

        It begins when the environment is there, its pause after failures is over and `max_resets_at_once` allows it.
        A seed is for an environment that has not played yet; without one the pool chooses it. Without a task, the
        environments choose.
        """
        self._slot_states.reset(slots, seed, task)

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
