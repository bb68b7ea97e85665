"""Findings of `minefleet doctor`, and questions to programs."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

ANSWER_S = 60.0
"""Longest that a program may take to say its version, seconds."""


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    """It works, but not for everything or not for long."""
    PROBLEM = "problem"
    """It will not work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line of the report."""

    level: Level
    subject: str
    text: str
    """The state found, and, where it is not enough, what to do about it."""


def ask(command: list[str], variables: Mapping[str, str], timeout_s: float = ANSWER_S) -> str | OSError:
    """All that a program says; the error where it does not start, or does not end."""
    try:
        done = subprocess.run(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        return error
    except subprocess.TimeoutExpired:
        return TimeoutError(0, f"it said nothing for {timeout_s:g} s")
    return done.stdout
