"""Child processes, and questions to one, for whatever imports heavy packages or somebody else's code.

The parent calls `ask(module, ...)`; the child, `python -m module ...`, calls `reply(work)`. The answer travels as JSON
through a file of its own, which whatever the child prints cannot spoil, and in memory, which a full disk cannot.
"""

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, BinaryIO, NoReturn, Protocol

from minefleet.core.errors import ConfigError, EnvFailedError
from minefleet.core.parent_death import tied
from minefleet_env.errors import in_one_line

ANSWER_VARIABLE = "MINEFLEET_ANSWER_FD"
MAX_EXIT_S = 5.0
"""Longest time for what `atexit` holds: wandb's part waits for its server."""
NO_DESCRIPTORS: Mapping[str, int] = MappingProxyType({})
ONE_REQUEST_S = 0.5
"""Signals that come together are one request: GNU's `timeout` sends two, one to the process and one to its group."""
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
) -> Process:
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


def ask(module: str, *arguments: str, start: Start = start_fresh) -> dict[str, Any]:
    """Runs a module in a child process and returns its answer. What the child prints is dropped.

    Raises:
        EnvFailedError: If the child raised it.
        ConfigError: If the child failed otherwise; with its reason in one line.
    """
    command = [*PYTHON, module, *arguments]
    with file_in_memory() as file, file_in_memory() as output:
        descriptors = {ANSWER_VARIABLE: file.fileno()}
        process = start(command, os.environ | tied(), output.fileno(), descriptors=descriptors)
        try:
            code = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        answer, last_word = read_answer(file), read_last_line(output)
    if "result" in answer:
        return answer["result"]  # type: ignore[no-any-return]  # JSON has no types.
    if "env_failure" in answer:
        raise EnvFailedError(answer["env_failure"])
    raise ConfigError(answer.get("error", f"{module} ended with exit code {code}: {last_word}"))


def file_in_memory() -> BinaryIO:
    """A file without a name, for a child to write to."""
    return os.fdopen(os.memfd_create("minefleet"), "w+b")


def read_answer(file: BinaryIO) -> dict[str, Any]:
    """The JSON that a child has written; nothing where it wrote none, or died over it."""
    file.seek(0)
    try:
        return dict(json.load(file))
    except ValueError:
        return {}


def read_last_line(output: BinaryIO) -> str:
    """The last line that a child has printed."""
    output.seek(0)
    lines = output.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def reply(work: Callable[[], dict[str, Any]]) -> None:
    """Answers the parent with the result and exits, or with the reason why there is none and raises."""
    try:
        _write({"result": work()})
        exit_at_once(0)
    except EnvFailedError as error:
        _write({"env_failure": str(error)})
        raise
    except ConfigError as error:
        _write({"error": str(error)})
        raise
    except Exception as error:
        _write({"error": in_one_line(error)})
        raise


def exit_at_once(code: int) -> NoReturn:
    """Ends this process after what `atexit` holds, or `MAX_EXIT_S`, without the interpreter's own end.

    That takes a second where torch is loaded, and waits for threads that are not daemons.
    """
    limit = threading.Timer(MAX_EXIT_S, os._exit, (code,))
    limit.daemon = True
    limit.start()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # A full disk, or a closed terminal.
            stream.flush()
    os._exit(code)


def _write(answer: dict[str, Any]) -> None:
    with os.fdopen(int(os.environ[ANSWER_VARIABLE]), "w") as file:
        json.dump(answer, file)
