"""Reads the last lines of an engine that ended at its start.

MineRL and MineStudio pass all of it on, in an `EOFError`.
"""

from __future__ import annotations

from minefleet_env.errors import EnvError

SHOWN_LINES = 3
"""Lines of its output that are passed on."""


def ended_at_start(error: EOFError) -> EnvError:
    """The failure, with the engine's last lines; the very last is the package's own."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    shown = "; ".join(lines[-1 - SHOWN_LINES : -1]) or "nothing"
    return EnvError(f"Minecraft ended at its start. It said: {shown}. See `minefleet doctor`", "exit")
