"""A pool of environments in processes of their own.

                    commands, one byte per environment
    ┌──────────┐ ───────────────────────────────────────▶ ┌─────────┐
    │ EnvPool  │            socket per process            │ process │ × ⌈num_envs / envs_per_process⌉
    └──────────┘ ◀─────────────────────────────────────── └─────────┘
       ▲    ▲         replies, one byte per environment       ▲    ▲
       │    └──────────── starts, kills ────▶ guard ──────────┘    │
       └─────── arrays, one row per slot, shared ──────────────────┘
              actions and seeds out; observations and results back

Commands   filled by `wait` with what `step` and `reset` have asked for, as soon as the process is idle; emptied by the
           process, which waits for nothing else and runs them in turn. A reset waits here until its slot's pause is
           over and the turnstile lets its process in.
Replies    filled by the process, emptied by `wait`, which waits for them, for the guard's events, for the next deadline
           and for `wake`.

Of environments in a batch (`env.batched`) all are given a command or none is, since they step together.

A process has at most one frame of either kind before it, so neither socket can fill up.

A process that dies, takes longer than a command may, takes too much memory or talks nonsense is killed by the guard,
with all that is below it, and started anew after a pause; what its slots were doing is reported as FAILED, once, when
it is gone. Of several environments in a process, one that raises or returns nonsense is made anew by itself. One that
is worn is made anew before a reset, together with its process if it has that for itself: in a shared process nobody
waits for the others' episodes to end. All of that happens inside `wait`.

Start, wait and close belong to one thread, which must outlive the pool's processes: the guard ends them with it.
"""

import os
import time
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minefleet.config import EnvConfig, WorkerConfig
from minefleet.core.schema import Schema
from minefleet.core.tree import Tree
from minefleet_actor.pool.base_pool import Pool
from minefleet_actor.pool.env_process import Stage
from minefleet_actor.pool.failure_log_limiter import FailureLog
from minefleet_actor.pool.pool_results import EnvStartError, Failure, Ready, Slots
from minefleet_actor.pool.process_supervisor import (
    OverMemory,
    ProcessAnswer,
    ProcessEnded,
    ProcessSupervisor,
    TimerFired,
    timeouts_s,
)
from minefleet_actor.pool.recycle_schedule import RecycleSchedule
from minefleet_actor.pool.start_limiter import StartLimiter
from minefleet_env import interpreter_command, shared_slot_arrays
from minefleet_env.process_messages import Command, Setup

GATHER_S = 0.002
"""Longest wait of results for others of the same process, where there is but one, seconds."""
KILL_SHARE = 1.25
"""Share of `max_rss_bytes` beyond which a process is not left alone until its episode ends."""


class EnvPool(Pool):
    """Environments in processes of their own; see `Pool` for the contract."""

    def __init__(
        self, env: EnvConfig, schema: Schema, worker: WorkerConfig, *, gather_s: float = GATHER_S, **options: Any
    ) -> None:
        """Starts nothing yet; see `GATHER_S`."""
        super().__init__(env, schema, worker, **options)
        self._config, self._gather_s = worker, gather_s
        self._turnstile = StartLimiter(worker.max_resets_at_once)
        self._wear = RecycleSchedule(worker.num_envs, worker.restart_interval, time.monotonic())
        self._log = FailureLog()
        self._supervisor = ProcessSupervisor(timeouts_s(worker), worker.max_rss_bytes)
        self._memory = -1
        self._running = False
        self._asked = set[int]()
        """Processes for which commands have come since the last `wait`."""

    @property
    def pids(self) -> list[int]:
        """Ids of the processes, which are their groups'; 0 for one that is down."""
        return [process.pid for process in self._supervisor.processes]

    @property
    def guard_pid(self) -> int:
        """Id of the process that starts and ends the others; 0 when it is down."""
        return self._supervisor.guard_pid

    def start(self) -> None:
        """Starts making the environments, and returns when one is made. Raises `EnvStartError` if one fails before."""
        self._memory = shared_slot_arrays.create(self._schema, self.num_slots, self._frame_shape)
        self._slot_states.arrays = shared_slot_arrays.attach(
            self._memory, self._schema, self.num_slots, self._frame_shape
        )
        self._supervisor.open(self._setups(), self._slot_states.arrays.began_s)
        for index in range(len(self._supervisor.processes)):
            self._begin(index)
        while not any(process.made for process in self._supervisor.processes):
            self._turn(np.inf)
        self._running = True
        spread = np.arange(self.num_slots) / self.num_slots * self._config.start_jitter_s
        self._slot_states.breaker.until_s[:] = time.monotonic() + spread

    def step(self, slots: Slots, action: Tree) -> None:
        """See `Pool`."""
        super().step(slots, action)
        self._asked.update((slots // self._config.envs_per_process).tolist())

    def reset(self, slots: Slots, seed: int | None = None, task: str = "") -> None:
        """See `Pool`."""
        super().reset(slots, seed, task)
        self._asked.update((slots // self._config.envs_per_process).tolist())

    def wait(self, timeout_s: float) -> Ready:
        """Passes on what was asked for, then waits until a slot has news, `wake` is called or the time is over.

        Resets and steps that the slots of one process were asked for go together, so that they are ready together.

        Raises:
            EnvGaveUpError: If no environment is left that works.
        """
        until_s, idle_s = time.monotonic() + timeout_s, self._supervisor.idle_s
        while self._asked:
            self._pass_on(self._asked.pop())
        self._turn(until_s)
        while not (self._slot_states.has_results or self._supervisor.was_woken) and time.monotonic() < until_s:
            self._turn(until_s)
        waited_s = self._supervisor.idle_s - idle_s
        self._gather(min(until_s, time.monotonic() + self._gather_s))
        self._supervisor.was_woken = False
        return self._slot_states.take(waited_s)

    def wake(self) -> None:
        """Makes `wait` return, the next one if none is under way. May be called from any thread, at any time."""
        self._supervisor.wake()

    def close(self) -> None:
        """Ends the processes and all that is below them."""
        self._supervisor.close()
        self._release_memory()

    def _gather(self, until_s: float) -> None:
        """Waits for what a single process is at, too: groups of its slots would each cost a decision of their own."""
        first, *others = self._supervisor.processes
        while not others and first.is_playing and time.monotonic() < until_s:
            self._turn(until_s)

    def _turn(self, until_s: float) -> None:
        """Waits for the next event, at most until `until_s`, and does what it calls for."""
        for event in self._supervisor.turn(until_s):
            match event:
                case ProcessAnswer():
                    self._record(event)
                case ProcessEnded():
                    self._replace(event)
                case TimerFired(index):
                    self._go_on(index)
                case OverMemory():
                    self._lighten(event)

    def _record(self, answer: ProcessAnswer) -> None:
        """Records the results of a process's environments, and sends the process what has come up meanwhile."""
        index, reply, longest = answer
        process = self._supervisor.processes[index]
        self._slot_states.record(reply, process.slots)
        self._log.record_all(reply.failures, process.slots, time.monotonic())
        if longest >= Command.RESET:
            self._turnstile.leave(index, comes_back=longest == Command.MAKE)
            self._pass_on(index)
            self._admit()
        else:
            self._pass_on(index)

    def _replace(self, end: ProcessEnded) -> None:
        """Plans the next start of a process that has ended; at once if it was only worn."""
        index, failure, was_made = end
        self._turnstile.leave(index)
        if failure is None:
            self._begin(index)
        elif not self._running:
            self.close()
            raise EnvStartError(failure.text)
        else:
            self._log.record(failure, time.monotonic())
            slots = self._supervisor.processes[index].slots
            if was_made:
                self._slot_states.lose(slots, failure)
            self._supervisor.call_at(index, self._slot_states.breaker.fail(slots, failure.text, time.monotonic()))
        self._admit()

    def _lighten(self, heavy: OverMemory) -> None:
        index, rss_bytes = heavy
        limit = self._config.max_rss_bytes
        if rss_bytes > KILL_SHARE * limit:
            text = f"it takes {rss_bytes} bytes with what it has started, and may take {limit}"
            self._supervisor.kill(index, Failure("memory", text))
        else:
            self._wear.expire(self._supervisor.processes[index].slots)

    def _begin(self, index: int) -> None:
        """Starts a process that is down, when the turnstile lets it."""
        if self._turnstile.enter(index):
            slots = self._supervisor.processes[index].slots
            self._slot_states.renew(slots)
            self._wear.renew(slots, time.monotonic())
            self._supervisor.start(index)

    def _admit(self) -> None:
        """Starts the processes that waited for room in the turnstile."""
        while (index := self._turnstile.admit()) is not None:
            self._go_on(index)

    def _go_on(self, index: int) -> None:
        if self._supervisor.processes[index].stage == Stage.DOWN:
            self._begin(index)
        else:
            self._pass_on(index)

    def _pass_on(self, index: int) -> None:
        """Passes on the commands that wait for a process, once it is idle: those given meanwhile become one frame."""
        process = self._supervisor.processes[index]
        if not process.is_idle:
            return
        row = self._slot_states.command[process.slots.start : process.slots.stop]
        commands = row.tobytes()
        if self._env_config.batched and not all(commands):
            return
        if max(commands) >= Command.RESET:
            commands = self._sift(index, row)
        else:
            row.fill(Command.NONE)
        if any(commands):
            self._supervisor.send(index, commands)

    def _sift(self, index: int, row: NDArray[np.uint8]) -> bytes:
        """Returns the commands without the resets that must wait; recreates worn environments for the others."""
        process, now_s = self._supervisor.processes[index], time.monotonic()
        slots = process.slots
        until_s = self._slot_states.breaker.until_s[slots.start : slots.stop]
        is_reset = row >= Command.RESET
        is_ripe = is_reset & (until_s <= now_s)
        waits = is_reset & ~is_ripe
        worn = is_ripe & self._wear.is_due(slots, now_s) & (not process.is_fresh)
        if not is_ripe.any() or (self._env_config.batched and waits.any()):
            self._supervisor.call_at(index, float(until_s[waits].min()))
        elif worn.any() and len(slots) == 1:
            self._supervisor.shut_down(index)
            return b""
        elif not self._turnstile.enter(index):
            is_ripe[:] = False
        else:
            self._renew([slots[offset] for offset in np.flatnonzero(worn)], now_s)
        may_go = is_ripe | ~is_reset
        if self._env_config.batched and not may_go.all():
            return b""
        commands = (row * may_go).tobytes()
        row[may_go] = Command.NONE
        return commands

    def _renew(self, slots: list[int], now_s: float) -> None:
        """Recreates environments in their process, with the reset that waits for each."""
        self._slot_states.renew(slots)
        for slot in slots:
            self._slot_states.command[slot] = Command.REMAKE
            self._wear.renew(range(slot, slot + 1), now_s)

    def _release_memory(self) -> None:
        """Drops the references to the arrays; another holder keeps one alive."""
        self._slot_states.arrays = shared_slot_arrays.private(self._schema, 0)
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    def _shares(self) -> list[range]:
        """The slots of each process."""
        size = self._config.envs_per_process
        return [range(start, min(start + size, self.num_slots)) for start in range(0, self.num_slots, size)]

    def _setups(self) -> list[Setup]:
        """The setup of each process."""
        shares = self._shares()
        return [
            Setup(
                config=asdict(self._env_config),
                schema=self._schema,
                num_slots=self.num_slots,
                slots=slots,
                memory=self._memory,
                import_path=interpreter_command.import_path(self._env_config.python),
                frame_shape=self._frame_shape,
                index=index,
                processes=len(shares),
                discount=self._discount,
            )
            for index, slots in enumerate(shares)
        ]
