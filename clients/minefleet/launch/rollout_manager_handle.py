"""A handle on a run's replay, parameters and actors, for a trainer.

`python -m minefleet.launch.rollout_manager_process` keeps them alive and holds the run's directory. The handle
finds it by its number, and takes it for nobody else by its command line.
"""

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minefleet.monitoring.status import RunStatus, read_status
from minefleet.runs.run_yaml import Run

PID_FILE = "rollout.pid"
"""In the run's directory: the number of that process."""


@dataclass(frozen=True, slots=True)
class RolloutManager:
    """The fleet of a run without its learner."""

    run: Run

    def describe(self) -> RunStatus:
        """Fetches the status of every role of the run."""
        return read_status(self.run.directory)

    @property
    def newest_version(self) -> int:
        """The newest version that actors can have; 0 before the first, or while parameters is away."""
        stats = {role.name: role.stats for role in self.describe().roles}
        return int(stats.get("parameters", {}).get("newest_version", 0))

    @property
    def pid(self) -> int:
        """The process that keeps these roles alive on this machine; 0 while there is none."""
        with self._process() as (pid, _):
            return pid

    def stop(self) -> None:
        """Drains and ends all roles, and waits for their end. Does nothing where none are kept alive."""
        with self._process() as (pid, descriptor):
            if pid:
                signal.pidfd_send_signal(descriptor, signal.SIGTERM)
                select.select([descriptor], [], [])
                with contextlib.suppress(ChildProcessError):  # It was started by another process.
                    os.waitpid(pid, 0)

    @contextlib.contextmanager
    def _process(self) -> Iterator[tuple[int, int]]:
        """The process's number and a pidfd of it, so that neither can come to mean another one; (0, -1) for none."""
        try:
            pid = int((self.run.directory / PID_FILE).read_text())
            descriptor = os.pidfd_open(pid)
        except (FileNotFoundError, ProcessLookupError):
            yield 0, -1
            return
        try:
            has_ended = bool(select.select([descriptor], [], [], 0)[0])
            yield (0, -1) if has_ended or not _keeps(pid, self.run.directory) else (pid, descriptor)
        finally:
            os.close(descriptor)


def rollout_command(directory: Path) -> list[str]:
    """Arguments of the Python that keeps a run's roles alive."""
    return ["-P", "-m", "minefleet.launch.rollout_manager_process", "--run-dir", str(directory)]


def _keeps(pid: int, directory: Path) -> bool:
    """Whether this process was started as the one that keeps the roles of that run alive."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return False
    return words[1:] == rollout_command(directory)
