"""A process that imports torch once and forks the roles that need it, so that they start in a moment.

    launcher ── exec ──▶ fork server: imports, then for each request ── fork ──▶ ends at once ── fork ──▶ the role
        ▲                                                                                                     │
        └───── the role's parent from then on, since the launcher adopts what has lost its own parent ◀───────┘

The launcher reaps, signals and outlives a forked role like one that it started itself, and the death of the fork server
harms none of them. It starts no thread, touches no GPU and runs nobody else's code, so what it forks is like new.

The standard library's fork server imports the launcher's main module in each child, which a user's script without a
guard does not bear, sends pickles, and stays the parent of what it forks.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import setproctitle

from minefleet.core.child_process_start import NO_DESCRIPTORS, PYTHON, Process, file_in_memory, start_fresh
from minefleet.core.parent_death import die_with_launcher, tied
from minefleet.launch.placement import ONE_THREAD_EACH

FIRST_MODULES = ("torch", "minefleet.launch.env_policy_check", "minefleet.policies.factory")
"""Modules that the check of environment and policy needs."""
OTHER_MODULES = (
    "minefleet_actor.role",
    "minefleet_learner.trainer_loader",
    "minefleet_learner.build",
    "minefleet_runtime.main",
    "minefleet_runtime.grpc_server.serve",
    "torch._dynamo",
)
"""Modules that the roles need; torch makes no optimizer without `torch._dynamo`."""
CHANNEL = "MINEFLEET_FORK_CHANNEL"
"""Environment variable: the fork server's descriptor of the socket between it and the launcher."""
MAX_FDS, MAX_BYTES = 8, 64
"""Of one message."""
TIMEOUT_S = 60.0
"""Longest wait for a fork, imports included; then processes are started afresh."""
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class ForkedProcess:
    """A child of this process that the fork server made."""

    pid: int

    def wait(self) -> int:
        """Reaps the process and returns its exit code; negative is the signal that killed it."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self) -> None:
        """Kills it."""
        os.kill(self.pid, signal.SIGKILL)


class ForkServer:
    """The launcher's side: starts the fork server, and has it fork."""

    def __init__(self) -> None:
        """Starts it; it imports while the launcher goes on."""
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(TIMEOUT_S)
        with theirs:
            self._process = start_fresh(
                [*PYTHON, "minefleet.launch.fork_server"],
                ONE_THREAD_EACH | os.environ | tied(),
                subprocess.DEVNULL,
                descriptors={CHANNEL: theirs.fileno()},
            )

    def close(self) -> None:
        """Ends the fork server; what it has forked lives on."""
        self._channel.close()
        self._process.kill()
        self._process.wait()

    def start(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        output: int,
        *,
        descriptors: Mapping[str, int] = NO_DESCRIPTORS,
        arrange: Callable[[int], None] = lambda _: None,
    ) -> Process:
        """Forks `python -m MODULE ...`; starts anything else afresh, or all where forking fails. See `Start`."""
        if [*command[:3]] != PYTHON:
            return start_fresh(command, variables, output, descriptors=descriptors, arrange=arrange)
        request = {"command": [*command], "variables": {**variables}, "descriptors": [*descriptors]}
        waits, go = os.pipe()
        try:
            with file_in_memory() as file:
                file.write(json.dumps(request).encode())
                file.flush()
                pid = self._fork([file.fileno(), output, waits, *descriptors.values()])
            if pid:
                arrange(pid)
                os.write(go, b"1")
                return ForkedProcess(pid)
        finally:
            os.close(waits)
            os.close(go)
        return start_fresh(command, variables, output, descriptors=descriptors, arrange=arrange)

    def _fork(self, descriptors: Sequence[int]) -> int:
        """Adopts what is forked and returns its process id; 0 where that fails."""
        try:
            _adopt_orphans(True)
            socket.send_fds(self._channel, [b"fork"], descriptors)
            return int(self._channel.recv(MAX_BYTES) or 0)
        except OSError:
            self._process.kill()
            return 0
        finally:
            with contextlib.suppress(OSError):
                _adopt_orphans(False)


def _adopt_orphans(adopts: bool) -> None:
    """Makes this process the parent of descendants whose own parent ends, or no longer."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(adopts), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def serve(channel: socket.socket) -> list[str]:
    """Imports and forks until the launcher hangs up, and exits; in a forked process, returns its command."""
    _import(FIRST_MODULES)
    while select.select([channel], [], [], 0)[0]:
        if command := _answer(channel):
            return command
    _import(OTHER_MODULES)
    gc.freeze()
    while True:
        if command := _answer(channel):
            return command


def _import(modules: Sequence[str]) -> None:
    for module in modules:
        with contextlib.suppress(ImportError):  # The role that needs it names what is missing.
            importlib.import_module(module)


def _answer(channel: socket.socket) -> list[str]:
    """Answers one request with the process id of what it forks; there, returns the command."""
    message, descriptors, _, _ = socket.recv_fds(channel, MAX_BYTES, MAX_FDS)
    if not message:
        sys.exit(0)
    ours, theirs = os.pipe()
    middle = os.fork()
    if middle == 0:
        if os.fork():
            os._exit(0)
        channel.close()
        os.setpgid(0, 0)
        os.write(theirs, str(os.getpid()).encode())
        os.close(theirs)
        os.close(ours)
        return _become(*descriptors)
    os.close(theirs)
    os.waitpid(middle, 0)  # From here on the launcher is the parent.
    channel.send(os.read(ours, MAX_BYTES))
    for descriptor in (ours, *descriptors):
        os.close(descriptor)
    return []


def _become(file: int, output: int, waits: int, *others: int) -> list[str]:
    """Makes this process what a request describes, once it may run, and returns the command."""
    if not os.read(waits, 1):
        sys.exit(0)  # The launcher is gone, or has given up waiting.
    os.close(waits)
    with os.fdopen(file) as text:
        text.seek(0)
        request: dict[str, Any] = json.load(text)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    setproctitle.setproctitle(" ".join(request["command"]))  # It finds its place by the old environment.
    os.environ.clear()
    os.environ.update(request["variables"])
    os.environ.update({name: str(number) for name, number in zip(request["descriptors"], others, strict=True)})
    np.random.seed()  # A fork reseeds Python's own generator, not NumPy's.
    return list(request["command"])


def main() -> None:
    """Serves; in each forked process, runs what was asked for."""
    die_with_launcher()
    _, _, _, module, *arguments = serve(socket.socket(fileno=int(os.environ[CHANNEL])))
    sys.argv = [module, *arguments]
    # Some of what is imported runs as a program, too, as with `python -m` of a module that its own package imports.
    warnings.filterwarnings("ignore", ".* found in sys.modules", RuntimeWarning, "runpy")
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
