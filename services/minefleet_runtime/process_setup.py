"""This process: its cores, open files, memory, log, threads and signals."""

import ctypes
import logging
import math
import os
import resource
import signal
import sys
import threading
import time
from types import FrameType

from minefleet.core.errors import EXIT_FAILED
from minefleet.core.termination_signal_set import ONE_REQUEST_S
from minefleet.launch.placement import ALL_CORES

logger = logging.getLogger(__name__)

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
MAPPED_BYTES = 32 * 2**20
"""Blocks from this size on are mapped one by one: the most that glibc allows."""
KEPT_BYTES = 64 * 2**20
"""Free bytes at the end of an arena that are kept for what comes next."""
SWITCH_INTERVAL_S = 0.0005
"""Longest that one thread keeps another one from the interpreter, seconds."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def all_cores() -> frozenset[int]:
    """Those of its launcher, also where that has tied this process to some of them; else this process's own."""
    cores = os.environ.get(ALL_CORES, "")
    return frozenset(map(int, cores.split(","))) if cores else frozenset(os.sched_getaffinity(0))


def allow_open_files() -> None:
    """Raises this process's soft limit to the hard one: the usual 1,024 are fewer than a server's connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_open_files() -> int:
    """The number of files that this process may open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def keep_freed_memory() -> None:
    """Makes glibc keep freed memory, up to a bound, instead of returning each message's and fragment's memory at once.

    A role allocates and frees buffers of 0.1 to 1 MiB without end. Returned to the kernel and taken anew, each costs
    page faults: a quarter of the time in appends and reads. Does nothing where there is another C library.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def switch_threads_often() -> None:
    """Lets threads change places often: who waits for a message is not to wait for another thread's turn to end."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def set_up_logging(role: str, level: str) -> None:
    """Sends every record of this process to stderr, named after the role."""
    logging.captureWarnings(capture=True)
    logging.basicConfig(
        stream=sys.stderr,
        level=level,
        format=f"%(asctime)s %(levelname)-7s {role} %(name)s: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S%z",
        force=True,
    )


def die_with_any_thread() -> None:
    """Ends the process at once when a thread dies of what nobody caught.

    Otherwise a role whose serving thread ran out of memory would look alive and answer nobody. It cannot drain either,
    for it may be that thread that the drain waits for; every role survives a sudden end by its own promises.
    """

    def end(died: threading.ExceptHookArgs) -> None:
        name = died.thread.name if died.thread is not None else "a thread"
        try:
            cause = (died.exc_type, died.exc_value, died.exc_traceback)
            logger.critical("%s died, and this role with it", name, exc_info=cause)  # type: ignore[arg-type]
        finally:
            os._exit(EXIT_FAILED)

    threading.excepthook = end


def stop_on_signal(stopping: threading.Event) -> None:
    """Sets the event at the first SIGTERM or SIGINT; one of a kind that comes later ends the process, with 128 + it.

    Python runs handlers in the main thread. Where the kernel gives the signal to another one, the main thread is not
    woken, and waits on and on. What the interpreter writes for each signal comes from whichever thread.
    """
    reads, writes = os.pipe()
    os.set_blocking(writes, False)

    def pass_on() -> None:
        came_s: dict[int, float] = {}
        while True:
            signum = os.read(reads, 1)[0]
            if time.monotonic() - came_s.get(signum, math.inf) > ONE_REQUEST_S:
                os._exit(128 + signum)
            if signum in STOP_SIGNALS and signum not in came_s:
                came_s[signum] = time.monotonic()
                logger.info("asked to stop by %s", signal.Signals(signum).name)
                stopping.set()

    threading.Thread(target=pass_on, name="signals", daemon=True).start()
    signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    for signum in STOP_SIGNALS:
        signal.signal(signum, _ignore)


def _ignore(signum: int, _: FrameType | None) -> None:
    """A handler: without one the interpreter writes nothing."""
