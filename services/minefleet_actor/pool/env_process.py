"""An environment process, as its pool sees it."""

import contextlib
import math
import os
import select
import signal
import socket
from enum import IntEnum

from minefleet_actor.pool.env_process_guard_client import GuardProcess
from minefleet_actor.pool.pool_results import Failure
from minefleet_env import interpreter_command, process_tree
from minefleet_env.process_messages import FAILURES, MAX_FRAME_BYTES, Command, Kind, Reply, Setup, unpack_reply

END_S = 10.0
"""Longest that the kernel may take to end a killed process, seconds."""
_GARBAGE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError)
"""Errors of reading bytes as a reply that are none."""
_EXPECTED = bytes.maketrans(bytes(Command), bytes([Kind.NONE, Kind.STEP, Kind.RESET, Kind.NONE, Kind.RESET]))
"""By command, what follows if nothing fails."""


class Stage(IntEnum):
    """The stage of a process; the legal moves are in `EnvProcess`'s docstring."""

    DOWN = 0
    UP = 1
    LEAVING = 2
    """Asked to close its environments and end."""
    KILLED = 3
    """To be killed. Nothing that it says counts any more."""


class GarbledError(Exception):
    """Bytes from a channel are no reply to the command."""


class EnvProcess:
    """Addresses the process of some slots' environments, one after another.

    DOWN ── open ──▶ UP: making ── reply ──▶ idle ── send ──▶ busy ── reply ──▶ idle
                      │                       │ hang_up                │
                      │                       ▼                        │
                      │                    LEAVING                     │
                      ▼                       ▼                        ▼
                    KILLED ◀── kill ──────────┴────────────────────────┘     and from everywhere ── ended ──▶ DOWN
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.slots = setup.slots
        self.stage = Stage.DOWN
        self.under_way = Command.NONE
        """Of the commands it was given last, the one that may take longest; NONE when it has replied."""
        self.pid = 0
        """Its process id, which is its group's; 0 when it is down or being started."""
        self.is_fresh = True
        """Whether nothing was asked of its environments yet."""
        self.failure: Failure | None = None
        """Reason for which it was killed; the text may be empty where only its end explains it."""
        self._commands = b""
        self._channel: socket.socket | None = None
        self._handle = -1
        """A descriptor of the process itself, which cannot come to mean another one."""
        self._buffer = bytearray(MAX_FRAME_BYTES)

    def open(self, guard: GuardProcess, index: int) -> None:
        """Starts the process, by the guard."""
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            python = self.setup.config["python"]
            self._channel.send(self.setup.pack())
            guard.start(
                index,
                interpreter_command.command(python, "serve"),
                theirs,
                without=interpreter_command.fleets_own(python),
            )
        self.stage, self.under_way, self.is_fresh = Stage.UP, Command.MAKE, True
        self._commands = bytes([Command.MAKE]) * len(self.slots)

    def started(self, pid: int) -> None:
        """Records the process's number."""
        self.pid = pid
        with contextlib.suppress(ProcessLookupError):
            self._handle = os.pidfd_open(pid)

    @property
    def made(self) -> bool:
        """Whether its environments are made, or were before it was shut down or killed."""
        return self.stage != Stage.DOWN and self.under_way != Command.MAKE

    @property
    def is_batch(self) -> bool:
        """Whether its environments step together, and fail so."""
        return bool(self.setup.config["batched"])

    @property
    def is_idle(self) -> bool:
        """Whether it waits for commands."""
        return self.stage == Stage.UP and not self.under_way

    @property
    def is_playing(self) -> bool:
        """Whether its environments step or reset, so that results of some are about to come."""
        return self.stage == Stage.UP and self.under_way in (Command.STEP, Command.RESET)

    def fileno(self) -> int:
        """The channel, for a selector."""
        return self._channel.fileno() if self._channel else -1

    def send(self, commands: bytes, longest: Command) -> None:
        """Passes commands on. To a dead process that does nothing; `receive` reports the death."""
        self.under_way, self._commands, self.is_fresh = longest, commands, False
        if self._channel:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._channel.send(commands)

    def receive(self) -> Reply | None:
        """Returns the reply that has come, or None when the process has hung up. Raises `GarbledError`."""
        try:
            size = self._channel.recv_into(self._buffer, 0, socket.MSG_DONTWAIT) if self._channel else 0
        except ConnectionResetError:
            return None
        if not size:
            return None
        try:
            reply = unpack_reply(bytes(self._buffer[:size]), len(self.slots))
            self._check(reply)
        except _GARBAGE as error:
            raise GarbledError(f"it sent what is no reply: {error!r}") from error
        return reply

    def hang_up(self) -> None:
        """Asks the process to close its environments and end."""
        self.stage = Stage.LEAVING
        if self._channel:
            with contextlib.suppress(OSError):
                self._channel.shutdown(socket.SHUT_WR)

    def mark_killed(self, failure: Failure | None) -> None:
        """Ignores further replies of the process."""
        self.stage, self.failure = Stage.KILLED, failure
        if self._channel:
            self._channel.close()
            self._channel = None

    def ended(self) -> None:
        """Records that the process is gone."""
        self.mark_killed(None)
        if self._handle >= 0:
            os.close(self._handle)
        self._handle, self.pid = -1, 0
        self.stage, self.under_way = Stage.DOWN, Command.NONE

    def kill(self) -> None:
        """Kills the process and what is below it, for a guard that cannot, and waits for the end."""
        if self._handle >= 0 and not select.select([self._handle], [], [], 0)[0]:
            process_tree.kill_tree(self.pid)
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            select.select([self._handle], [], [], END_S)

    def _check(self, reply: Reply) -> None:
        """Refuses a reply to what was not asked."""
        expected = self._commands.translate(_EXPECTED) if self.under_way else b""
        if reply.kinds == expected and not reply.failures and not reply.endings:
            return
        failed = {index for index, kind in enumerate(reply.kinds) if kind == Kind.FAILED}
        answered = [Kind.FAILED if i in failed and self._commands[i] else kind for i, kind in enumerate(expected)]
        if self.is_batch:
            # Steps may wait for the others' resets.
            answered = [Kind.NONE if not got else kind for got, kind in zip(reply.kinds, answered, strict=True)]
        if bytes(answered) != reply.kinds or failed != set(reply.failures):
            raise ValueError(f"{list(reply.kinds)} follows on {list(self._commands)}")
        for index, ending in reply.endings.items():
            if reply.kinds[index] not in (Kind.STEP, Kind.RESET) or not isinstance(ending.task, str):
                raise ValueError(f"environment {index} has no such end: {ending}")
            math.fsum(ending.metrics.values())
        for failure in reply.failures.values():
            if failure.kind not in FAILURES:
                raise ValueError(f"there is no failure {failure.kind!r}")
