"""Handles the signals that stop a role."""

import logging
import os
import signal
import threading
from types import FrameType

logger = logging.getLogger(__name__)

STOP = (signal.SIGTERM, signal.SIGINT)


def stop_on_signal(stopping: threading.Event) -> None:
    """Sets the event at the first SIGTERM or SIGINT; the second of a kind ends the process at once, with 128 + it.

    Python runs handlers in the main thread. Where the kernel gives the signal to another one, the main thread is not
    woken, and waits on and on. What the interpreter writes for each signal comes from whichever thread.
    """
    reads, writes = os.pipe()
    os.set_blocking(writes, False)

    def pass_on() -> None:
        came: set[int] = set()
        while True:
            signum = os.read(reads, 1)[0]
            if signum in came:
                os._exit(128 + signum)
            if signum in STOP:
                came.add(signum)
                logger.info("asked to stop by %s", signal.Signals(signum).name)
                stopping.set()

    threading.Thread(target=pass_on, name="signals", daemon=True).start()
    signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    for signum in STOP:
        signal.signal(signum, _ignore)


def _ignore(signum: int, _: FrameType | None) -> None:
    """A handler: without one the interpreter writes nothing."""
