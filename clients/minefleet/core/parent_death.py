"""Ends this process when its parent dies, however that dies."""

import ctypes
import os
import signal

LAUNCHER_VARIABLE = "MINEFLEET_LAUNCHER_PID"
"""Set by the parent of a process that must not outlive it."""

_PR_SET_PDEATHSIG = 1


def tied() -> dict[str, str]:
    """Environment variables that tie a child to this process. It must be started by this process's main thread."""
    return {LAUNCHER_VARIABLE: str(os.getpid())}


def die_with_launcher() -> None:
    """Asks the kernel to kill this process when its launcher dies; without a launcher, does nothing.

    SIGKILL, because nobody is left to bound a drain; every role survives that by its own promises.
    """
    launcher = os.environ.pop(LAUNCHER_VARIABLE, None)
    if launcher is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != int(launcher):
        os.kill(os.getpid(), signal.SIGKILL)
