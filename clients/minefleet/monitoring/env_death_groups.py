"""Reads the deaths of a run's environments, which its actors have put into groups by their causes."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from minefleet.core.errors import ConfigError
from minefleet_env.process_messages import FOR_MEMORY

DEATHS_DIRECTORY, DEATH_FILE, ACTIONS_FILE = "deaths", "death.json", "actions.npz"
KEYS = frozenset(
    "actor slot time_s first_s count group text task seed episode steps rss_bytes log cannot_repeat".split()
)
NATIVE = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE")
GROWN = 1.5
"""Factor by which memory has grown in the second half of its samples before it is suspected."""
_FRAME = re.compile(r'^ *File "(.+)", line (\d+), in .+$', re.MULTILINE)
_ERROR = re.compile(r"^[^\s:]+", re.MULTILINE)
_END = re.compile(r"ended by (SIG\w+)|exited with code (\d+)")
_SLOTS = re.compile(r"^.*?\bslots? [\d-]+: ")

Death = dict[str, Any]


def group_of(kind: str, text: str) -> str:
    """The name of a failure's group: `ValueError@env.py:42`, `SIGSEGV`, `exit:7`, `hang:STEP`, `memory`, ..."""
    frames, end = list(_FRAME.finditer(text)), _END.search(text)
    error = _ERROR.search(text, frames[-1].end()) if frames else None
    if kind == "memory" or FOR_MEMORY in text or (error and error[0] == MemoryError.__name__):
        return "memory"
    if error:
        return f"{error[0]}@{Path(frames[-1][1]).name}:{frames[-1][2]}"
    if kind == "exit" and end:
        return end[1] or f"exit:{end[2]}"
    line = _SLOTS.sub("", text).partition("\n")[0].partition(", got ")[0]
    said = line.partition(" ")[0] if kind == "hang" else re.sub(r"[^\w.:]+", "-", re.sub(r"\d+", "N", line))
    return f"{kind}:{said[:60].strip('-')}"


def read_death(place: Path) -> Death:
    """The death that is kept in a directory, with its `name` and `place`; raises `ConfigError` if there is none."""
    with suppress(OSError, ValueError, AttributeError, RecursionError):
        death: Death = json.loads((place / DEATH_FILE).read_bytes())
        if death.keys() >= KEYS:
            return death | {"name": place.name, "place": str(place)}
    raise ConfigError(f"there is no death of an environment in {place}")


def read_deaths(run_directory: Path) -> list[Death]:
    """The deaths that a run has kept, the oldest first; whatever else lies there is left out."""
    deaths = []
    for path in (run_directory / DEATHS_DIRECTORY).glob(f"[!.]*/{DEATH_FILE}"):
        with suppress(ConfigError):
            deaths.append(read_death(path.parent))
    return sorted(deaths, key=lambda death: float(death["time_s"]))


def cause_of(group: str, deaths: Sequence[Death]) -> str:
    """The most likely cause of the deaths of a group, for people."""
    halves = [(sizes[len(sizes) // 2], sizes[-1]) for death in deaths if (sizes := death["rss_bytes"])]
    grows = bool(halves) and median(last / max(middle, 1) for middle, last in halves) > GROWN
    if group == "memory" or (group == "SIGKILL" and grows):
        return "it runs out of memory" + ", which grows while it plays" * grows
    if group.startswith("SIG"):
        return "its native code crashes" if group in NATIVE else "something outside kills its process"
    causes = {
        "hang": "it takes longer than it may: it hangs, or the limit is too low",
        "exit": "its process ends itself",
    }
    said = f"it raises {group.replace('@', ' at ')}" if "@" in group else "it returns what it must not, or says so"
    return causes.get(group.partition(":")[0], said)
