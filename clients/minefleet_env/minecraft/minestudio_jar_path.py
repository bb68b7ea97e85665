"""The engine of MineStudio, which its wheel does not have."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

JAR = Path("engine", "build", "libs", "mcprec-6.13.jar")


def jar() -> Path:
    """The path at which the engine lies, or should."""
    return Path(os.environ.get("MINESTUDIO_DIR") or Path(tempfile.gettempdir(), "MineStudio")) / JAR


def missing() -> str:
    """Advice about a missing engine; empty where it is there, or nothing of MineStudio was asked for."""
    if "minestudio.simulator" not in sys.modules:
        return ""
    if jar().is_file():
        return ""
    return (
        f"MineStudio's engine is missing: there is no {jar()}. Fetch it by `{sys.executable} -m "
        "minestudio.simulator.entry -y`, or set MINESTUDIO_DIR to the folder that has it"
    )
