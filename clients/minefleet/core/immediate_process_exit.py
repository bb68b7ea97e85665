"""Exits at once, without the interpreter's shutdown."""

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn

MAX_EXIT_S = 5.0
"""Longest time for what `atexit` holds: wandb's part waits for its server."""


def exit_at_once(code: int) -> NoReturn:
    """Ends this process after what `atexit` holds, or `MAX_EXIT_S`, without the interpreter's own end.

    That takes a second where torch is loaded, and waits for threads that are not daemons.
    """
    limit = threading.Timer(MAX_EXIT_S, os._exit, (code,))
    limit.daemon = True
    limit.start()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # A full disk, or a closed terminal.
            stream.flush()
    os._exit(code)
