"""A display for engines on machines that have none.

Each environment process gets its own Xvfb: one that dies takes one environment with it and not all, and the guard ends
it with the process like everything else that the process has started.
"""

from __future__ import annotations

import os
import shutil

from minefleet_worker.errors import RefusedError

SCREEN = "1024x768x24"
SILENCE = [(os.POSIX_SPAWN_OPEN, descriptor, os.devnull, os.O_RDWR, 0) for descriptor in range(3)]


def provide_display() -> None:
    """Starts Xvfb and sets `DISPLAY`; does nothing where `DISPLAY` is set.

    Raises:
        RefusedError: If there is no Xvfb, or it does not start.
    """
    if os.environ.get("DISPLAY"):
        return
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
            os.posix_spawn(xvfb, command, os.environ, file_actions=SILENCE)
        finally:
            os.close(writing)
        number = answer.readline().strip()
    if not number:
        raise RefusedError(f"Minecraft needs a display, and {xvfb} did not start; run it by hand to see why")
    os.environ["DISPLAY"] = f":{number}"
