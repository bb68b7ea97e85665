"""The guard of a pool's environment processes, `python -m minefleet_env.env_process_guard`, started by `EnvPool`.

    pool ── start, kill ──────────▶ guard ──▶ environment processes ──▶ whatever they start
    pool ◀── started, ended, rss ── guard ◀── orphans ────────────────────────┘

It is the parent of the environment processes and adopts what outlives one of them. So all that an environment ever
started is below it, in whatever session or group: when an environment process has ended, a child that is not one of the
others is a leftover, and is killed. The guard ends when the pool hangs up, or dies: it gives the environment processes,
which see that too, `CLOSE_S` to close their environments, asks them by SIGTERM, waits as long again and kills the rest.

Requests   filled by the pool, emptied here; each JSON in a packet of its own. `start` brings the process's channel.
Events     filled here, emptied by the pool. `ended` comes once per `start`, and is the last that is said of it.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from typing import Any

from minefleet_env import process_tree
from minefleet_env.process_messages import FOR_MEMORY

MAX_REQUEST_BYTES = 2**16
CLOSE_S = 3.0
"""Longest that processes may take to end when their channels have closed, and again when asked by signal, seconds."""
WEIGH_INTERVAL_S = 5.0
"""Time between two samples of the memory, where it is not limited, seconds."""
MAX_SAMPLES = 60
OOM_S = 2.0
"""Time after a kill for want of memory in which others end because of it, seconds."""
INSPECT_INTERVAL_S = 1.0
"""Time between two looks at the processes' memory, seconds."""


class EnvProcessGuard:
    """Starts processes and ends them with all that is theirs."""

    def __init__(self, pool: socket.socket, max_rss_bytes: int) -> None:
        self._pool = pool
        self._max_rss_bytes = max_rss_bytes
        self._indices: dict[int, int] = {}
        """By process id, the pool's number for each environment process that has not been reaped."""
        self._rss_bytes: dict[int, deque[int]] = {}
        self._weigh_at_s = 0.0
        self._oom_kills, self._oom_until_s = process_tree.oom_kills(), 0.0
        self._inspect_at_s = time.monotonic() + INSPECT_INTERVAL_S
        self._wake, wake = os.pipe()
        for end in (self._wake, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._is_stopped = False
        for number, handler in ((signal.SIGCHLD, self._ignore), (signal.SIGTERM, self._stop)):
            signal.signal(number, handler)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def run(self) -> None:
        """Serves until the pool is gone; then ends everything, as also when serving fails."""
        try:
            while not self._is_stopped and self._serve(INSPECT_INTERVAL_S):
                self._inspect()
        finally:
            self._end()

    def _end(self) -> None:
        """Ends all processes and what is below them."""
        self._await_ends(CLOSE_S)
        for pid in self._indices:
            os.kill(pid, signal.SIGTERM)
        self._await_ends(CLOSE_S)
        while process_tree.kill_children():
            os.waitpid(-1, 0)

    def _serve(self, timeout_s: float) -> bool:
        """Waits for a request or the end of a process, and attends to it; says whether the pool is there."""
        readable, _, _ = select.select([self._pool.fileno(), self._wake], [], [], timeout_s)
        self._reap()
        return self._pool.fileno() not in readable or self._obey()

    def _obey(self) -> bool:
        room = socket.CMSG_SPACE(array.array("i").itemsize)
        try:
            frame, ancillary, _, _ = self._pool.recvmsg(MAX_REQUEST_BYTES, room, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:  # The pool has gone without hearing everything.
            return False
        if not frame:
            return False
        request = json.loads(frame)
        if "start" in request:
            # Without room for its descriptor it has not come.
            channel = array.array("i", ancillary[0][2])[0] if ancillary else -1
            variables = {name: value for name, value in os.environ.items() if name not in request["without"]}
            self._start(request["start"], request["command"], variables, channel)
        else:
            self._kill(request["kill"])
        return True

    def _start(self, index: int, command: list[str], variables: dict[str, str], channel: int) -> None:
        """Starts a process as the leader of a session; of what is open here it gets what is inheritable."""
        arguments = [*command, str(channel), str(os.getpid())]
        try:
            os.set_inheritable(channel, True)
            pid = os.posix_spawnp(
                arguments[0],
                arguments,
                variables,
                file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
                setsid=True,
                setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ],
            )
        except OSError as error:
            self._send(ended=index, how=f"it could not be started: {error}")
        else:
            self._indices[pid], self._rss_bytes[pid] = index, deque(maxlen=MAX_SAMPLES)
            self._send(started=index, pid=pid)
        finally:
            with contextlib.suppress(OSError):
                os.close(channel)

    def _kill(self, index: int) -> None:
        """Kills a process with its group; one that has ended by itself meanwhile has been reported."""
        for pid, its_index in self._indices.items():
            if its_index == index:
                process_tree.kill_group(pid)

    def _reap(self) -> None:
        """Reaps what has ended, kills what it left behind, and only then reports it."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)
        ended: list[dict[str, Any]] = []
        with contextlib.suppress(ChildProcessError):
            while True:
                # Its group dies before it is reaped: until then the number cannot be another group's.
                waiting = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if waiting is None:
                    break
                process_tree.kill_group(waiting.si_pid)
                _, status, usage = os.wait4(waiting.si_pid, 0)
                if waiting.si_pid in self._indices:
                    seen = self._rss_bytes.pop(waiting.si_pid)
                    seen.append(max([usage.ru_maxrss * 1024, *list(seen)[-1:]]))
                    how = _described(status) + self._lacked_memory()
                    ended.append({"ended": self._indices.pop(waiting.si_pid), "how": how, "rss_bytes": [*seen]})
        process_tree.kill_children(spared=self._indices)
        for event in ended:
            self._send(**event)

    def _inspect(self) -> None:
        """Kills what an end left behind unseen; samples memory, and reports processes that take more than they may."""
        if time.monotonic() < self._inspect_at_s:
            return
        self._inspect_at_s = time.monotonic() + INSPECT_INTERVAL_S
        process_tree.kill_children(spared=self._indices)
        self._lacked_memory()
        if self._indices and (self._max_rss_bytes or time.monotonic() >= self._weigh_at_s):
            self._weigh_at_s = time.monotonic() + WEIGH_INTERVAL_S
            for pid, rss_bytes in process_tree.weigh(self._indices, process_tree.survey()):
                self._rss_bytes[pid].extend([rss_bytes] if rss_bytes else [])  # One that has just ended has none.
                if 0 < self._max_rss_bytes < rss_bytes:
                    self._send(heavy=self._indices[pid], rss_bytes=rss_bytes)

    def _lacked_memory(self) -> str:
        """The words for an end just before which the kernel has killed something for want of memory; else none."""
        before, self._oom_kills = self._oom_kills, process_tree.oom_kills()
        if self._oom_kills > before:
            self._oom_until_s = time.monotonic() + OOM_S
        return f", {FOR_MEMORY}" if time.monotonic() < self._oom_until_s else ""

    def _await_ends(self, timeout_s: float) -> None:
        """Waits until all processes have ended, but not for what they may have left behind."""
        until_s = time.monotonic() + timeout_s
        while self._indices and (left_s := until_s - time.monotonic()) > 0:
            select.select([self._wake], [], [], left_s)
            self._reap()

    def _send(self, **event: Any) -> None:
        with contextlib.suppress(OSError):
            self._pool.send(json.dumps(event).encode())

    def _ignore(self, *_: object) -> None:
        """Does nothing; that a signal has come is written to the pipe that the guard waits for."""

    def _stop(self, *_: object) -> None:
        self._is_stopped = True


def _described(status: int) -> str:
    if not os.WIFSIGNALED(status):
        return f"it exited with code {os.WEXITSTATUS(status)}"
    number = os.WTERMSIG(status)
    names = {one.value: one.name for one in signal.Signals}
    return f"it was ended by {names.get(number, f'signal {number}')}"


def main() -> None:
    """Guards until the pool has gone."""
    channel, pool_pid, max_rss_bytes = map(int, sys.argv[1:])
    os.set_inheritable(channel, False)
    guard = EnvProcessGuard(socket.socket(fileno=channel), max_rss_bytes)
    process_tree.adopt_orphans()
    if process_tree.tie_to(pool_pid):
        guard.run()


if __name__ == "__main__":
    main()
