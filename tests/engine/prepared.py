"""A package prepared to play over the stand-in engine, and the processes that it has left running."""

import contextlib
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

PLACE = Path(__file__).parents[1]
MODULE = "engine.engine"
"""The engine as its process imports it, with nothing of the fleet beside it."""
TAG = "STAND_IN_ENGINE"
"""A folder of its own for each, by which its processes are known, whoever has started them."""
LOGS = "MALMO_MINECRAFT_OUTPUT_LOGDIR"
"""Folders of both packages' engine logs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """An interpreter, and the variables under which its package starts the stand-in engine."""

    python: str
    variables: Mapping[str, str]

    def environ(self, **faults: str) -> dict[str, str]:
        """This process's variables with those of the package and of an engine's faults."""
        return os.environ | dict(self.variables) | faults

    def engines(self) -> list[psutil.Process]:
        """Engines that run or are stopped."""
        return [process for process in self.processes() if _is_engine(process)]

    def processes(self) -> list[psutil.Process]:
        """All processes under these variables, whoever their parents are; not this one, nor zombies."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def end(self) -> None:
        """Kills what is left."""
        left = self.processes()
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=10)

    def _is_ours(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error):
            theirs = process.environ().get(TAG) == self.variables[TAG]
            return theirs and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
        return False


def _is_engine(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return MODULE in process.cmdline()
    return False


def write_script(path: Path, *lines: str) -> None:
    """Writes a shell script that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(("#!/bin/sh", *lines)) + "\n")
    path.chmod(0o755)


def start_engine() -> str:
    """The line of a shell script that becomes the engine."""
    place, python = shlex.quote(str(PLACE)), shlex.quote(sys.executable)
    return f'PYTHONPATH={place} exec {python} -m {MODULE} "$@"'
