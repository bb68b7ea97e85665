"""An environment process, as its pool sees it."""

import contextlib
import os
import signal
import socket
import subprocess

from minefleet_worker import boot
from minefleet_worker.frames import MAX_FRAME_BYTES, Command, Reply, Setup, unpack_reply

REAP_S = 10
"""Longest that the kernel may take to end a killed process, seconds."""


class EnvProcess:
    """Starts, addresses and ends the process of some slots' environments, again and again.

    down ── start ──▶ making ── reply ──▶ idle ── send ──▶ busy ── reply ──▶ idle, and from everywhere ── end ──▶ down
    """

    def __init__(self, setup: Setup) -> None:
        self.slots = setup.slots
        self.under_way = Command.NONE
        """Of the commands it was given last, the one that may take longest; NONE when it has replied."""
        self._setup = setup
        self._popen: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._buffer = bytearray(MAX_FRAME_BYTES)

    def start(self) -> None:
        """Starts the process in a group of its own, by exec: nothing of this process is shared but what is passed."""
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            python = self._setup.config["python"]
            self._popen = subprocess.Popen(
                boot.command(python, "serve", str(theirs.fileno()), str(os.getpid())),
                pass_fds=(theirs.fileno(), self._setup.memory),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=boot.environment(python),
            )
        self._channel.send(self._setup.pack())
        self.under_way = Command.MAKE

    @property
    def alive(self) -> bool:
        """Whether the process was started and has not been ended; it may have died unnoticed."""
        return self._popen is not None

    @property
    def pid(self) -> int:
        """Its process id, which is its group's; 0 when it is down."""
        return self._popen.pid if self._popen else 0

    @property
    def made(self) -> bool:
        """Whether its environments are made."""
        return self.alive and self.under_way != Command.MAKE

    def fileno(self) -> int:
        """The channel, for a selector."""
        return self._channel.fileno() if self._channel else -1

    def send(self, commands: bytes, longest: Command) -> None:
        """Passes commands on. To a dead process that does nothing; `receive` tells of the death."""
        self.under_way = longest
        if self._channel:
            with contextlib.suppress(BrokenPipeError):
                self._channel.send(commands)

    def receive(self) -> Reply | None:
        """Returns the next reply, or None when the process has died. Waits for one of them."""
        try:
            size = self._channel.recv_into(self._buffer) if self._channel else 0
        except ConnectionResetError:
            return None
        return unpack_reply(bytes(self._buffer[:size]), len(self.slots)) if size else None

    def hang_up(self) -> None:
        """Asks the process to close its environments and end."""
        if self._channel:
            with contextlib.suppress(OSError):
                self._channel.shutdown(socket.SHUT_WR)

    def terminate(self) -> None:
        """Asks again, also in the middle of a command."""
        if self._popen:
            self._popen.terminate()

    def end(self) -> str:
        """Kills the process and its group, whatever state they are in, and says how it ended."""
        if self._popen is None or self._channel is None:
            return "it was not running"
        # Before the process is reaped: until then the group's number cannot be another's.
        os.killpg(self._popen.pid, signal.SIGKILL)
        code = self._popen.wait(REAP_S)
        self._channel.close()
        self._popen, self._channel, self.under_way = None, None, Command.NONE
        return f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"it exited with code {code}"
