"""A pool of environments in processes of their own.

                    commands, one byte per environment
    ┌──────────┐ ───────────────────────────────────────▶ ┌─────────┐
    │ EnvPool  │            socket per process            │ process │ × ⌈num_envs / envs_per_process⌉
    └──────────┘ ◀─────────────────────────────────────── └─────────┘
          ▲         replies, one byte per environment          ▲
          │                                                    │
          └─────── arrays, one row per slot, shared ───────────┘
              actions and seeds out; observations and results back

Commands   filled by `step` and `reset` when the process is idle, else by `wait` as soon as it is; emptied by the
           process, which waits for nothing else and runs them in turn.
Replies    filled by the process, emptied by `wait`, which waits for them, for the next deadline and for `wake`.

A process has at most one frame of either kind before it, so neither socket can fill up.

A process that dies, or takes longer than a command may, is killed with its group and started anew after a pause that
doubles; what its slots were doing is reported as FAILED, once. Of several environments in a process, one that raises or
returns nonsense is made anew by itself. All of that happens inside `wait`.

Start, wait and close belong to one thread, which must outlive the pool's processes: the kernel ends them with it.
"""

import logging
import os
import selectors
import sys
import threading
import time

import numpy as np

from minefleet.config import EnvConfig, WorkerConfig
from minefleet.schema import Schema
from minefleet.tree import Tree
from minefleet_actor.pool.contract import EnvStartError, Failure, Ready, Slots
from minefleet_actor.pool.process import EnvProcess
from minefleet_actor.pool.slots import SlotBook
from minefleet_worker import layout
from minefleet_worker.frames import Command, Setup

logger = logging.getLogger(__name__)

BACKOFF_S = 0.1
"""Pause before a process is started anew after its first failure, seconds; doubled with each failure in a row."""
MAX_BACKOFF_S = 30.0
LONGEST_SELECT_S = 3600.0
CLOSE_S = 3.0
"""Longest that processes may take to end when asked, and again when asked by signal, seconds."""


class EnvPool:
    """Environments in processes of their own; see `Pool` for the contract."""

    def __init__(
        self, env_config: EnvConfig, schema: Schema, worker_config: WorkerConfig, *, seed: int, actor_index: int
    ) -> None:
        self._env_config = env_config
        self._schema = schema
        self._config = worker_config
        self._book = SlotBook(schema, worker_config, seed=seed, actor_index=actor_index)
        self._timeout_s = _timeouts_s(worker_config)
        self._processes: list[EnvProcess] = []
        self._due_s = np.zeros(0)
        """Per process: when its command is overdue or, of one that is down, when to start it; infinity for never."""
        self._selector = selectors.DefaultSelector()
        self._memory = -1
        self._waker = -1
        self._waker_lock = threading.RLock()
        """Reentrant, since a signal's handler may wake the pool while its thread is here."""
        self._awake = False
        self._running = False

    @property
    def num_slots(self) -> int:
        """Number of environments."""
        return self._config.num_envs

    @property
    def resting(self) -> int:
        """Number of slots that failed so often that they are left alone for a while."""
        return 0

    @property
    def obs(self) -> Tree:
        """Tree of [num_slots, ...]: each slot's latest observation, until its next command."""
        return self._book.arrays.obs

    @property
    def pids(self) -> list[int]:
        """Ids of the processes, which are their groups'; 0 for one that is down."""
        return [process.pid for process in self._processes]

    def start(self) -> None:
        """Makes the environments, in all processes at once. Raises `EnvStartError` if one fails."""
        self._memory = layout.create(self._schema, self.num_slots)
        self._book.arrays = layout.attach(self._memory, self._schema, self.num_slots)
        self._waker = os.eventfd(0)
        self._selector.register(self._waker, selectors.EVENT_READ)
        self._processes = [EnvProcess(self._setup(slots)) for slots in self._shares()]
        self._due_s = np.zeros(len(self._processes))
        while not all(process.made for process in self._processes):
            self._turn(np.inf)
        self._running = True

    def step(self, slots: Slots, action: Tree) -> None:
        """Starts a step of each slot and returns; `action` is a tree of [len(slots), ...]."""
        self._book.step(slots, action)
        self._send(slots)

    def reset(self, slots: Slots) -> None:
        """Starts a new episode in each slot and returns; where the process is down, as soon as it is up again."""
        self._book.reset(slots)
        self._send(slots)

    def wait(self, timeout_s: float) -> Ready:
        """Waits until a slot has news, `wake` is called or the time is over. Raises `EnvGaveUpError`."""
        until_s = time.monotonic() + timeout_s
        self._turn(until_s)
        while not (self._book.has_news or self._awake) and time.monotonic() < until_s:
            self._turn(until_s)
        self._awake = False
        return self._book.take()

    def wake(self) -> None:
        """Makes `wait` return, the next one if none is under way. May be called from any thread, at any time."""
        with self._waker_lock:
            if self._waker >= 0:
                os.eventfd_write(self._waker, 1)

    def close(self) -> None:
        """Asks the processes to end, asks again by signal, kills them with their groups; at most 2 · `CLOSE_S`."""
        self._release_waker()
        for ask in (EnvProcess.hang_up, EnvProcess.terminate):
            for process in self._processes:
                ask(process)
            self._await_ends(time.monotonic() + CLOSE_S)
        for process in self._processes:
            process.end()
        self._selector.close()
        self._release_memory()

    def _turn(self, until_s: float) -> None:
        """Waits for the next event, at most until `until_s`, and does what it calls for."""
        patience_s = min(until_s, self._due_s.min()) - time.monotonic()
        for key, _ in self._selector.select(min(max(patience_s, 0.0), LONGEST_SELECT_S)):
            if key.data is None:
                self._awake = os.eventfd_read(self._waker) > 0
            else:
                self._hear(key.data)
        for index in np.flatnonzero(self._due_s <= time.monotonic()):
            self._act_on_due(int(index))

    def _hear(self, index: int) -> None:
        """Takes a process's reply. A lone environment's failure is its process's: children of it may be left over."""
        process = self._processes[index]
        reply = process.receive()
        if reply is None:
            self._fail(index, "exit")
        elif reply.failures and (len(process.slots) == 1 or not process.made):
            self._fail(index, *next(iter(reply.failures.values())))
        else:
            process.under_way = Command.NONE
            self._due_s[index] = np.inf
            self._book.record(reply, process.slots)
            self._flush(index)

    def _send(self, slots: Slots) -> None:
        for index in set((slots // self._config.envs_per_process).tolist()):
            self._flush(index)

    def _flush(self, index: int) -> None:
        """Passes on the commands that wait for a process, once it is idle: those given meanwhile become one frame."""
        process = self._processes[index]
        if not process.alive or process.under_way:
            return
        row = self._book.command[process.slots.start : process.slots.stop]
        commands = row.tobytes()
        if any(commands):
            row[:] = Command.NONE
            process.send(commands, Command(max(commands, key=self._timeout_s.__getitem__)))
            self._set_due(index)

    def _set_due(self, index: int) -> None:
        self._due_s[index] = time.monotonic() + self._timeout_s[self._processes[index].under_way]

    def _act_on_due(self, index: int) -> None:
        """Starts a process that is down. Kills one whose present command is overdue, not one that is at the next."""
        process = self._processes[index]
        if not process.alive:
            self._start(index)
            return
        command = process.under_way
        began_s = self._book.arrays.began_s[process.slots.start : process.slots.stop].max()
        self._due_s[index] = began_s + self._timeout_s[command]
        if self._due_s[index] <= time.monotonic():
            self._fail(index, "hang", f"{command.name} took longer than {self._timeout_s[command]:g} s")

    def _start(self, index: int) -> None:
        process = self._processes[index]
        process.start()
        self._selector.register(process, selectors.EVENT_READ, index)
        self._set_due(index)

    def _fail(self, index: int, kind: str, reason: str = "") -> None:
        """Ends a process and plans its next start."""
        process = self._processes[index]
        pid, made = process.pid, process.made
        self._selector.unregister(process)
        ending = process.end()
        text = f"environment process {pid}, {_named(process.slots)}: {reason or ending}"
        if not self._running:
            self.close()
            raise EnvStartError(text)
        logger.warning("%s", text)
        if made:
            self._book.lose(process.slots, Failure(kind, text))
        failures = self._book.count_failure(process.slots, text)
        self._due_s[index] = time.monotonic() + min(BACKOFF_S * 2 ** (failures - 1), MAX_BACKOFF_S)

    def _await_ends(self, until_s: float) -> None:
        """Waits until all processes have ended, and reaps those that have."""
        while self._selector.get_map() and (left_s := until_s - time.monotonic()) > 0:
            for key, _ in self._selector.select(left_s):
                process = self._processes[key.data]
                if process.receive() is None:
                    self._selector.unregister(process)
                    process.end()

    def _release_waker(self) -> None:
        with self._waker_lock:
            waker, self._waker = self._waker, -1
            if waker >= 0:
                self._selector.unregister(waker)
                os.close(waker)

    def _release_memory(self) -> None:
        """Lets go of the arrays; who still holds one keeps it alive."""
        self._book.arrays = layout.private(self._schema, 0)
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    def _shares(self) -> list[range]:
        """The slots of each process."""
        size = self._config.envs_per_process
        return [range(start, min(start + size, self.num_slots)) for start in range(0, self.num_slots, size)]

    def _setup(self, slots: range) -> Setup:
        return Setup(
            config=self._env_config,
            schema=self._schema,
            num_slots=self.num_slots,
            slots=slots,
            memory=self._memory,
            import_path=sys.path,
        )


def _timeouts_s(config: WorkerConfig) -> dict[int, float]:
    """The longest that each command may take, seconds."""
    return {
        Command.NONE: 0.0,
        Command.STEP: config.step_timeout_s,
        Command.RESET: config.reset_timeout_s,
        Command.MAKE: config.start_timeout_s,
        Command.REMAKE: config.start_timeout_s + config.reset_timeout_s,
    }


def _named(slots: range) -> str:
    return f"slot {slots[0]}" if len(slots) == 1 else f"slots {slots[0]}-{slots[-1]}"
