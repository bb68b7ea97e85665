"""A pool of environments in this process, for `--serial` and debuggers: `wait` runs the commands, in turn."""

import threading

from minefleet.config import EnvConfig, WorkerConfig
from minefleet.schema import Schema
from minefleet.tree import Tree
from minefleet_actor.pool.contract import EnvStartError, Ready, Slots
from minefleet_actor.pool.slots import SlotBook
from minefleet_worker import layout
from minefleet_worker.frames import Command
from minefleet_worker.host import EnvHost


class InlinePool:
    """Environments in this process; see `Pool` for the contract. Nothing is killed here, so a hang is a hang."""

    def __init__(
        self, env_config: EnvConfig, schema: Schema, worker_config: WorkerConfig, *, seed: int, actor_index: int
    ) -> None:
        self._env_config = env_config
        self._schema = schema
        self._slots = range(worker_config.num_envs)
        self._book = SlotBook(schema, worker_config, seed=seed, actor_index=actor_index)
        self._host: EnvHost | None = None
        self._woken = threading.Event()

    @property
    def num_slots(self) -> int:
        """Number of environments."""
        return len(self._slots)

    @property
    def resting(self) -> int:
        """Number of slots that failed so often that they are left alone for a while."""
        return 0

    @property
    def obs(self) -> Tree:
        """Tree of [num_slots, ...]: each slot's latest observation, until its next command."""
        return self._book.arrays.obs

    def start(self) -> None:
        """Makes the environments. Raises `EnvStartError` if one fails."""
        self._book.arrays = layout.private(self._schema, self.num_slots)
        self._host = EnvHost(self._env_config, self._schema, self._book.arrays, self._slots)
        failures = self._host.make().failures
        if failures:
            self.close()
            raise EnvStartError("\n".join(f"slot {slot}: {failure.text}" for slot, failure in failures.items()))

    def step(self, slots: Slots, action: Tree) -> None:
        """Asks for a step of each slot."""
        self._book.step(slots, action)

    def reset(self, slots: Slots) -> None:
        """Asks for a new episode in each slot."""
        self._book.reset(slots)

    def wait(self, timeout_s: float) -> Ready:
        """Does what was asked for. Where that is nothing, waits until `wake` is called or the time is over."""
        commands = self._book.command.tobytes()
        if self._host is not None and any(commands):
            self._book.command[:] = Command.NONE
            self._book.record(self._host.run(commands), self._slots)
        else:
            self._woken.wait(timeout_s)
        self._woken.clear()
        return self._book.take()

    def wake(self) -> None:
        """Makes `wait` return, the next one if none is under way. May be called from any thread, at any time."""
        self._woken.set()

    def close(self) -> None:
        """Closes the environments."""
        if self._host is not None:
            self._host.close()
            self._host = None
