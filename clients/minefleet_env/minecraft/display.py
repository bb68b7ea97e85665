"""A display for engines on machines that have none.

Each environment process gets its own Xvfb: one that dies takes one environment with it and not all, and the guard ends
it with the process like everything else that the process has started.
"""

from __future__ import annotations

import os
import shutil

from minefleet_env.errors import RefusedError

SCREEN = "1024x768x24"
SILENCE = [(os.POSIX_SPAWN_OPEN, descriptor, os.devnull, os.O_RDWR, 0) for descriptor in range(3)]


_servers: dict[str, int] = {}
"""The process ids of Xvfbs that were started here, by what `DISPLAY` is for them."""


def provide_display() -> None:
    """Starts Xvfb and sets `DISPLAY`; does nothing where `DISPLAY` is set, unless to one of ours that is gone.

    Raises:
        RefusedError: If there is no Xvfb, or it does not start.
    """
    display = os.environ.get("DISPLAY")
    if display and not _is_gone(display):
        return
    os.environ["DISPLAY"] = ""
    xvfb = shutil.which("Xvfb")
    if xvfb is None:
        raise RefusedError(
            "Minecraft needs a display: DISPLAY is not set and Xvfb is not installed; install it "
            "(`apt install xvfb`), or set DISPLAY"
        )
    # Xvfb takes the first free number and writes it once it serves; that it has ended shows as an empty line.
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    command = [xvfb, "-displayfd", str(writing), "-screen", "0", SCREEN, "-nolisten", "tcp", "-noreset"]
    with open(reading) as answer:  # noqa: PTH123  # It is a descriptor.
        try:
            pid = os.posix_spawn(xvfb, command, os.environ, file_actions=SILENCE)
        finally:
            os.close(writing)
        number = answer.readline().strip()
    if not number:
        raise RefusedError(f"Minecraft needs a display, and {xvfb} did not start; run it by hand to see why")
    os.environ["DISPLAY"] = f":{number}"
    _servers[f":{number}"] = pid


def _is_gone(display: str) -> bool:
    """Whether a display is one that was started here and has ended."""
    if display not in _servers:
        return False
    try:
        return os.waitpid(_servers[display], os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True
