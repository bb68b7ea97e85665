"""Starts child processes; `ForkServer` offers the same interface."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import BinaryIO, Protocol

NO_DESCRIPTORS: Mapping[str, int] = MappingProxyType({})
PYTHON = [sys.executable, "-P", "-m"]
"""Runs a module. What lies in the current folder shadows none of its imports."""


class Process(Protocol):
    """A child process, as `subprocess.Popen` shows it."""

    @property
    def pid(self) -> int:
        """Its process id, until it is waited for."""
        ...

    def wait(self) -> int:
        """Reaps it and returns its exit code; negative is the signal that killed it."""
        ...

    def kill(self) -> None:
        """Kills it. Only before it is waited for."""
        ...


class Start(Protocol):
    """A way to start a child process in a process group of its own: `start_fresh`, or `ForkServer.start`."""

    def __call__(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        output: int,
        *,
        descriptors: Mapping[str, int] = NO_DESCRIPTORS,
        arrange: Callable[[int], None] = lambda _: None,
    ) -> Process:
        """Starts it.

        Args:
            command: The program and its arguments.
            variables: All its environment variables.
            output: Descriptor of its stdout and stderr; stdin is empty.
            descriptors: More that it inherits; each variable named here will hold its number there.
            arrange: Called with its process id while it has one thread; what it sets is inherited by those to come.
        """
        ...


def start_fresh(
    command: Sequence[str],
    variables: Mapping[str, str],
    output: int,
    *,
    descriptors: Mapping[str, int] = NO_DESCRIPTORS,
    arrange: Callable[[int], None] = lambda _: None,
) -> subprocess.Popen[bytes]:
    """Starts a program afresh; see `Start`."""
    process = subprocess.Popen(
        command,
        env={**variables, **{name: str(number) for name, number in descriptors.items()}},
        pass_fds=[*descriptors.values()],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        process_group=0,
    )
    arrange(process.pid)
    return process


def file_in_memory() -> BinaryIO:
    """A file without a name, to hand to a child."""
    return os.fdopen(os.memfd_create("minefleet"), "w+b")
