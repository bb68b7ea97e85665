"""Keeps a pool's processes: starts them through the guard, receives their replies, watches their deadlines, ends them.

Nothing here waits but `turn` and `close`. What a process's end means for its slots, and when it is started again, is
the pool's to decide.
"""

import logging
import os
import selectors
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minefleet.config import WorkerConfig
from minefleet_actor.pool.env_process import EnvProcess, GarbledError, Stage
from minefleet_actor.pool.env_process_guard_client import GuardProcess
from minefleet_actor.pool.pool_results import Failure
from minefleet_env.process_messages import FOR_MEMORY, Command, Reply, Setup

logger = logging.getLogger(__name__)

MAX_SELECT_S = 3600.0
CLOSE_TIMEOUT_S = 10.0
"""Longest that a process may take to close its environments before it is killed, seconds."""
END_S = 10.0
"""Time after which a killed process that does not end is complained of, seconds."""
_WAKER = -1
_GUARD = -2
_EXIT = Failure("exit", "")


class ProcessAnswer(NamedTuple):
    """A process has done its commands."""

    process: int
    reply: Reply
    longest: Command
    """Of the commands, the one that may take longest."""


class ProcessEnded(NamedTuple):
    """A process is gone, with everything below it."""

    process: int
    failure: Failure | None
    """Why, unless it had been asked to leave."""
    was_made: bool


class TimerFired(NamedTuple):
    """The time for which `call_at` asked has come; the process is idle or down."""

    process: int


class OverMemory(NamedTuple):
    """A process and what is below it take more memory than they may."""

    process: int
    rss_bytes: int


Event = ProcessAnswer | ProcessEnded | TimerFired | OverMemory


class ProcessSupervisor:
    """The processes of a pool."""

    def __init__(self, timeouts_s: Mapping[int, float], max_rss_bytes: int) -> None:
        self.processes: list[EnvProcess] = []
        self.was_woken = False
        self.idle_s = 0.0
        """Seconds that `turn` only waited, in all."""
        self._timeouts_s = timeouts_s
        """The longest that each command may take, seconds."""
        self._began_s = np.zeros(0)
        self._due_s = np.zeros(0)
        """Per process: when its command, leaving or end is overdue, or when it is to be called; else infinity."""
        self._guard = GuardProcess(max_rss_bytes)
        self._selector = selectors.DefaultSelector()
        self._waker = -1
        self._waker_lock = threading.RLock()
        """Reentrant, since a signal's handler may wake the pool while its thread is here."""

    def open(self, setups: Sequence[Setup], began_s: NDArray[np.float64]) -> None:
        """Takes on the processes, which are down; [N] `began_s` says when each slot's latest command was begun."""
        self.processes = [EnvProcess(setup) for setup in setups]
        self._began_s = began_s
        self._due_s = np.full(len(setups), np.inf)
        self._waker = os.eventfd(0)
        self._selector.register(self._waker, selectors.EVENT_READ, _WAKER)

    @property
    def guard_pid(self) -> int:
        """Process id of the guard; 0 when there is none."""
        return self._guard.pid

    def turn(self, until_s: float) -> Iterator[Event]:
        """Waits for the next event, at most until `until_s`; yields what has happened."""
        began_s = time.monotonic()
        patience_s = min(until_s, self._due_s.min()) - began_s
        found = self._selector.select(min(max(patience_s, 0.0), MAX_SELECT_S))
        self.idle_s += time.monotonic() - began_s
        for key, _ in found:
            if key.data >= 0:
                yield from self._receive(key.data)
            elif key.data == _GUARD:
                yield from self._receive_from_guard()
            else:
                self.was_woken = os.eventfd_read(self._waker) > 0
        for index in np.flatnonzero(self._due_s <= time.monotonic()).tolist():
            yield from self._act_on_due(index)

    def start(self, index: int) -> None:
        """Starts a process that is down, and the guard before it if that is down too."""
        if not self._guard.pid:
            self._guard.open(self.processes[index].setup.memory)
            self._selector.register(self._guard, selectors.EVENT_READ, _GUARD)
        process = self.processes[index]
        process.open(self._guard, index)
        self._selector.register(process, selectors.EVENT_READ, index)
        self._set_deadline(index)

    def send(self, index: int, commands: bytes) -> None:
        """Gives commands to an idle process."""
        self.processes[index].send(commands, Command(max(commands, key=self._timeouts_s.__getitem__)))
        self._set_deadline(index)

    def call_at(self, index: int, when_s: float) -> None:
        """Makes `turn` yield a `TimerFired` then, for a process that is idle or down. Only the last call counts."""
        self._due_s[index] = when_s

    def shut_down(self, index: int) -> None:
        """Asks an idle process to close its environments and end. `ProcessEnded` follows, without a failure."""
        self.processes[index].hang_up()
        self._due_s[index] = time.monotonic() + CLOSE_TIMEOUT_S

    def kill(self, index: int, failure: Failure | None) -> None:
        """Kills a process without reading from it again. `ProcessEnded` follows, once it cannot write to its rows."""
        process = self.processes[index]
        self._selector.unregister(process)
        process.mark_killed(failure)
        self._guard.kill(index)
        self._due_s[index] = time.monotonic() + END_S

    def wake(self) -> None:
        """Makes `turn` return, the next one if none is under way. May be called from any thread, at any time."""
        with self._waker_lock:
            if self._waker >= 0:
                os.eventfd_write(self._waker, 1)

    def close(self) -> None:
        """Asks the processes to end, asks again by signal, kills them with all that is below them: the guard does."""
        with self._waker_lock:
            if self._waker >= 0:
                os.close(self._waker)
            self._waker = -1
        self._selector.close()
        for process in self.processes:
            process.hang_up()
        self._guard.close()
        for process in self.processes:
            process.kill()
            process.ended()
        self._began_s = np.zeros(0)

    def _receive(self, index: int) -> Iterator[Event]:
        """Receives a process's reply. A failure of all that it has is its process's: it may have left children."""
        process = self.processes[index]
        if process.stage not in (Stage.UP, Stage.LEAVING):
            return
        try:
            reply = process.receive()
        except BlockingIOError:
            return
        except GarbledError as error:
            self.kill(index, Failure("contract", str(error)))
            return
        if reply is None:
            self.kill(index, None if process.stage == Stage.LEAVING else _EXIT)
        elif reply.failures and (not process.made or self._is_of_all(process, reply)):
            self.kill(index, next(iter(reply.failures.values())))
        else:
            longest, process.under_way = process.under_way, Command.NONE
            self._due_s[index] = np.inf
            yield ProcessAnswer(index, reply, longest)

    @staticmethod
    def _is_of_all(process: EnvProcess, reply: Reply) -> bool:
        return len(reply.failures) == len(process.slots) and (len(process.slots) == 1 or process.is_batch)

    def _receive_from_guard(self) -> Iterator[Event]:
        try:
            for event in self._guard.events():
                yield from self._handle_guard_event(event)
        except EOFError:
            yield from self._lose_guard()

    def _handle_guard_event(self, event: dict[str, Any]) -> Iterator[Event]:
        match event:
            case {"started": index, "pid": pid}:
                self.processes[index].started(pid)
            case {"ended": index, "how": how}:
                yield self._end(index, how, event.get("rss_bytes", ()))
            case {"heavy": index, "rss_bytes": rss_bytes} if self.processes[index].stage == Stage.UP:
                yield OverMemory(index, rss_bytes)

    def _end(self, index: int, how: str, rss_bytes: Sequence[int] = ()) -> ProcessEnded:
        """Records that a process is gone, noticed or not."""
        process = self.processes[index]
        if process.stage != Stage.KILLED:
            self._selector.unregister(process)
        failure = _EXIT if process.stage == Stage.UP else process.failure
        if failure is not None:
            said = f"{failure.text}\n{how}" if failure.text and FOR_MEMORY in how else failure.text or how
            text = f"environment process {process.pid}, {named(process.slots)}: {said}"
            failure = Failure(failure.kind, text, rss_bytes)
        end = ProcessEnded(index, failure, process.made)
        process.ended()
        self._due_s[index] = np.inf
        return end

    def _lose_guard(self) -> Iterator[Event]:
        """Ends the processes without their guard. The next start starts another."""
        logger.warning("the guard of the environment processes, %s, died; they end with it", self._guard.pid)
        self._selector.unregister(self._guard)
        self._guard.close()
        for index, process in enumerate(self.processes):
            if process.stage != Stage.DOWN:
                process.kill()
                yield self._end(index, "its guard died")

    def _act_on_due(self, index: int) -> Iterator[Event]:
        process = self.processes[index]
        if process.stage == Stage.UP and process.under_way:
            self._check_deadline(index)
        elif process.stage == Stage.LEAVING:
            self.kill(index, None)
        else:
            self._due_s[index] = np.inf
            if process.stage == Stage.KILLED:
                logger.warning("environment process %s was killed %g s ago and does not end", process.pid, END_S)
            else:
                yield TimerFired(index)

    def _check_deadline(self, index: int) -> None:
        """Dooms a process whose present command is overdue, not one that is at the next."""
        process = self.processes[index]
        command, began_s = process.under_way, self._began_s[process.slots.start : process.slots.stop].max()
        self._due_s[index] = began_s + self._timeouts_s[command]
        if not self._due_s[index] > time.monotonic():
            reason = f"{command.name} took longer than {self._timeouts_s[command]:g} s"
            self.kill(index, Failure("hang", reason))

    def _set_deadline(self, index: int) -> None:
        self._due_s[index] = time.monotonic() + self._timeouts_s[self.processes[index].under_way]


def named(slots: range) -> str:
    """The name of these slots in messages."""
    return f"slot {slots[0]}" if len(slots) == 1 else f"slots {slots[0]}-{slots[-1]}"


def timeouts_s(config: WorkerConfig) -> dict[int, float]:
    """The longest that each command may take, seconds."""
    return {
        Command.NONE: 0.0,
        Command.STEP: config.step_timeout_s,
        Command.RESET: config.reset_timeout_s,
        Command.MAKE: config.start_timeout_s,
        Command.REMAKE: config.start_timeout_s + config.reset_timeout_s,
    }
