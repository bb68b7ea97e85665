"""The guard of a pool's processes, as the pool sees it; `minefleet_env.env_process_guard` is what it is."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from minefleet_env import interpreter_command

MAX_EVENT_BYTES = 2**16
END_S = 10.0
"""Longest that the guard may take to end everything: twice what it gives the processes, and more for the kernel."""


class GuardProcess:
    """Starts environment processes through a process that outlives this one for as long as they do."""

    def __init__(self, max_rss_bytes: int) -> None:
        self._max_rss_bytes = max_rss_bytes
        self._popen: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    @property
    def pid(self) -> int:
        """Its process id, though it may have died unnoticed; 0 before it is started, and once it is ended."""
        return self._popen.pid if self._popen else 0

    def fileno(self) -> int:
        """The channel, for a selector."""
        return self._channel.fileno() if self._channel else -1

    def open(self, memory: int) -> None:
        """Starts the guard, in a session of its own: what is sent to this process's group is not for it.

        The processes that it starts inherit `memory`, under the same number.
        """
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            arguments = [str(theirs.fileno()), str(os.getpid()), str(self._max_rss_bytes)]
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "minefleet_env.env_process_guard", *arguments],
                pass_fds=(theirs.fileno(), memory),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=interpreter_command.environment(""),
            )

    def start(self, index: int, command: Sequence[str], channel: socket.socket, *, without: Sequence[str]) -> None:
        """Asks for a process that gets the channel, and the numbers of channel and parent as its last arguments.

        It inherits the environment variables but those in `without`.
        """
        self._ask({"start": index, "command": command, "without": without}, [channel.fileno()])

    def kill(self, index: int) -> None:
        """Asks to kill a process with all that is its own. `ended` follows, as it does whenever a process ends."""
        self._ask({"kill": index}, [])

    def events(self) -> Iterator[dict[str, Any]]:
        """Yields what the guard has to tell. Raises `EOFError` when it is dead."""
        while self._channel:
            try:
                event = self._channel.recv(MAX_EVENT_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionResetError:
                event = b""
            if not event:
                raise EOFError("the guard is dead")
            yield json.loads(event)

    def close(self) -> None:
        """Hangs up and waits until the guard has ended, which it does when all processes have; kills it else."""
        if self._popen is None or self._channel is None:
            return
        self._channel.close()
        try:
            self._popen.wait(END_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        self._popen, self._channel = None, None

    def _ask(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """Passes a request on. To a dead guard that does nothing; `events` reports the death."""
        if self._channel:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(self._channel, [json.dumps(request).encode()], descriptors)
