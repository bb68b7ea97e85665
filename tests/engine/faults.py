"""Faults of an engine, by environment variables, all of them off by default.

    ENGINE_DIE_AT_START   any text: it says so and exits before it listens
    ENGINE_START_S        seconds that it takes to start
    ENGINE_CRASH_AT       the step at which its process exits
    ENGINE_HANG_AT        the step at which its process stops, as with SIGSTOP
    ENGINE_GARBAGE_AT     the step at which it answers with a picture of no size and an info that is no JSON
    ENGINE_LEAK_MB        memory that it takes more with every step
    ENGINE_MARK           any text: it draws marks into its pictures, see `marks.py`

Steps are counted from 1 in each engine's life.
"""

import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

CRASHED = 1


@dataclass(slots=True)
class Faults:
    """The faults of one engine."""

    die_at_start: str = ""
    start_s: float = 0.0
    crash_at: int = 0
    hang_at: int = 0
    garbage_at: int = 0
    leak_mb: float = 0.0
    leaked: list[bytes] = field(default_factory=list)

    def at_start(self) -> None:
        """Before the engine listens."""
        if self.die_at_start:
            sys.exit(f"[main/ERROR]: {self.die_at_start}")
        time.sleep(self.start_s)

    def at_step(self, step: int) -> None:
        """Before the engine answers a step."""
        if self.leak_mb:
            self.leaked.append(os.urandom(int(self.leak_mb * 2**20)))
        if step == self.crash_at:
            os._exit(CRASHED)
        if step == self.hang_at:
            os.kill(os.getpid(), signal.SIGSTOP)


def read_faults(variables: Mapping[str, str]) -> Faults:
    """The faults that environment variables ask for."""
    return Faults(
        die_at_start=variables.get("ENGINE_DIE_AT_START", ""),
        start_s=float(variables.get("ENGINE_START_S", 0)),
        crash_at=int(variables.get("ENGINE_CRASH_AT", 0)),
        hang_at=int(variables.get("ENGINE_HANG_AT", 0)),
        garbage_at=int(variables.get("ENGINE_GARBAGE_AT", 0)),
        leak_mb=float(variables.get("ENGINE_LEAK_MB", 0)),
    )
