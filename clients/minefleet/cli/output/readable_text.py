"""Numbers, paths and commands as people read them."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(size_bytes: float) -> str:
    """Bytes as people read them: 3.4 MiB."""
    for unit in UNITS[:-1]:
        if size_bytes < 1024:
            return f"{size_bytes:,.0f} {unit}" if unit == "B" else f"{size_bytes:,.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:,.1f} {UNITS[-1]}"


def duration(seconds: float) -> str:
    """Seconds as a clock shows them: 1:02:03, or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def age(seconds: float) -> str:
    """Seconds as people say them: 0.2 s, 12 s, 3.5 min, 26 h."""
    for limit, unit in ((60, "s"), (3600, "min")):
        if seconds < limit:
            return f"{seconds * 60 / limit:.{1 if seconds * 60 < 10 * limit else 0}f} {unit}"
    return f"{seconds / 3600:.{1 if seconds < 36000 else 0}f} h"


def described(values: Mapping[str, Any]) -> str:
    """Values of configuration keys, by the last part of each key: learning_rate=0.001, gru_size=64."""
    shown = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in values.items()}
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in shown.items())


def from_here(path: Path) -> Path:
    """The path as seen from the current folder, where it lies below that."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def program() -> str:
    """The words by which the shell finds this program."""
    if shutil.which("minefleet"):
        return "minefleet"
    return "python -m minefleet" if sys.argv[0].endswith("__main__.py") else os.path.relpath(sys.argv[0])
