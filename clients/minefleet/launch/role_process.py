"""One role of a local fleet: the process that plays it now, and what became of the ones before."""

import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from minefleet.core.child_process_start import PYTHON, Process, Start, start_fresh
from minefleet.core.errors import EXIT_AGAIN
from minefleet.core.parent_death import tied
from minefleet.launch.placement import ONE_THREAD_EACH, ProcessPlacement

FAST_DEATH_S = 20.0
"""A process that lives shorter than this has died fast: it will hardly do better next time."""

FIRST_DELAY_S = 0.5
MAX_DELAY_S = 30.0
LAST_LINES = 3
LAST_BYTES = 65536
RECORD = re.compile(r"\d{4}-\d\d-\d\dT\S+ (DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
"""Start of a record in a role's log: its time and level."""
ANYWHERE = ProcessPlacement()
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class ExitInfo:
    """The end of a process."""

    code: int
    """Exit code; negative is the signal that killed it."""
    lived_s: float
    last_words: str
    """The end of its log, one line each."""
    last_record: str
    """The last record of its log, with all the lines that belong to it; its last words where it logged none."""

    @property
    def how(self) -> str:
        """In words."""
        return f"killed by {signal.Signals(-self.code).name}" if self.code < 0 else f"exit code {self.code}"

    @property
    def story(self) -> str:
        """The same, as what the role has done."""
        if self.code == EXIT_AGAIN:
            return "goes back to an older checkpoint"
        return f"died ({self.how}) after {self.lived_s:.0f} s"


class RoleProcess:
    """A role's process: started, dead and due again, or stopped for good."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        place: ProcessPlacement = ANYWHERE,
        variables: Mapping[str, str] = NO_VARIABLES,
        start: Start = start_fresh,
        first_delay_s: float = FIRST_DELAY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.command = tuple(command)
        self.log = log
        self.fast_deaths = 0
        """In a row."""
        self.due_s: float | None = None
        """When to start it again, on the clock."""
        self._place = place
        self._variables = variables
        self._start_process = start
        self._first_delay_s = first_delay_s
        self._clock = clock
        self._process: Process | None = None
        self._pidfd = -1
        self._began_s = 0.0
        self._log_start = 0

    @property
    def is_alive(self) -> bool:
        """Whether there is a process that has not been reaped."""
        return self._process is not None

    @property
    def pidfd(self) -> int:
        """Becomes readable when the process ends."""
        return self._pidfd

    def start(self) -> None:
        """Starts the process in a group of its own, with its output at the end of its log."""
        self.due_s = None
        self._began_s = self._clock()
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            variables = {**ONE_THREAD_EACH, **os.environ, **self._place.variables, **self._variables, **tied()}
            self._process = self._start_process(self.command, variables, log.fileno(), arrange=self._arrange)
        self._pidfd = os.pidfd_open(self._process.pid)

    def _arrange(self, pid: int) -> None:
        """Puts a process in its place. It has one thread by now; those that it starts later inherit this."""
        if self._place.cores:
            os.sched_setaffinity(pid, self._place.cores)

    def reap(self) -> ExitInfo:
        """Collects the ended process and whatever is left of its group."""
        assert self._process is not None
        self.kill()
        code = self._process.wait()
        os.close(self._pidfd)
        self._process, self._pidfd = None, -1
        lived_s = self._clock() - self._began_s
        self.fast_deaths = self.fast_deaths + 1 if lived_s < FAST_DEATH_S and code != EXIT_AGAIN else 0
        lines = lines_since(self.log, self._log_start)
        words = lines[-LAST_LINES:]
        return ExitInfo(
            code=code, lived_s=lived_s, last_words="\n".join(words), last_record="\n".join(last_record(lines) or words)
        )

    def put_off(self) -> float:
        """Makes it due again after a delay that doubles with every fast death; returns the delay in seconds."""
        doublings = max(self.fast_deaths - 1, 0)
        delay_s = min(self._first_delay_s * float(2**doublings), MAX_DELAY_S)
        self.due_s = self._clock() + delay_s
        return delay_s

    def terminate(self) -> None:
        """Asks the process to drain."""
        if self._process is not None:
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)

    def kill(self) -> None:
        """Kills the process and its group. Until it is reaped, its number cannot name another one."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)


def lines_since(log: Path, start: int) -> list[str]:
    """The lines that a log has gained since it had `start` bytes, at most the last ones."""
    with log.open("rb") as file:
        file.seek(max(start, file.seek(0, os.SEEK_END) - LAST_BYTES))
        return [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]


def last_record(lines: Sequence[str]) -> Sequence[str]:
    """The lines from the last one that begins a record on, as roles log them; none where no line does."""
    begins = [number for number, line in enumerate(lines) if RECORD.match(line)]
    return lines[begins[-1] :] if begins else ()


def role_command(role: str, run_directory: Path, index: int | str = 0) -> list[str]:
    """The command line of a role; `index` is a number, or "host"."""
    return [*PYTHON, f"minefleet_{role}", "--run-dir", str(run_directory), "--index", str(index)]


def quoted(words: str) -> str:
    """Indents the last words of a role, to stand below a message."""
    lines = words.splitlines() or ["(it said nothing)"]
    return "".join(f"\n    {line}" for line in lines)
