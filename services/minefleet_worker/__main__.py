"""An environment process: `python -m minefleet_worker CHANNEL PARENT`, started by `EnvPool` and by nothing else.

    pool ──commands──▶ channel ──▶ EnvHost.run ──▶ channel ──reply──▶ pool

It waits for commands and for nothing else. It ends when the channel closes or SIGTERM comes, which the kernel sends
when the pool's thread dies: it closes its environments, then kills its process group, children of theirs included.
"""

import contextlib
import ctypes
import os
import signal
import sys
from typing import NoReturn

from minefleet_worker.frames import MAX_FRAME_BYTES, unpack_setup
from minefleet_worker.host import EnvHost
from minefleet_worker.layout import attach

PR_SET_PDEATHSIG = 1
ALL_CORES = "MINEFLEET_ALL_CORES"
"""Set by the launcher of a pinned actor: the cores of its environments, as in `0,1,5`."""
CLOSE_S = 10
"""Longest that environments may take to close, seconds; the process is killed then, also without a parent."""


def main() -> None:
    """Runs until the channel closes."""
    channel, parent_pid = map(int, sys.argv[1:])
    _tie_to(parent_pid)
    _spread_out()
    os.set_inheritable(channel, False)
    host = _host(os.read(channel, MAX_FRAME_BYTES))
    with contextlib.suppress(SystemExit, BrokenPipeError):
        _serve(channel, host)
        # Inside, so that a signal that comes now ends the serving and not what follows.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.alarm(CLOSE_S)
    host.close()
    os.killpg(0, signal.SIGKILL)


def _tie_to(parent_pid: int) -> None:
    """Makes this process end with its parent, and only then: Ctrl-C is the parent's to judge."""
    if os.getpgrp() != os.getpid():
        sys.exit("an environment process leads a group of its own; start it through EnvPool")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _exit)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent_pid:
        sys.exit("the parent is gone")


def _spread_out() -> None:
    """Leaves the cores of a pinned parent to it, for all that its launcher has."""
    cores = os.environ.pop(ALL_CORES, "")
    if cores:
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])


def _exit(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit()


def _host(setup_frame: bytes) -> EnvHost:
    setup = unpack_setup(setup_frame)
    sys.path[:] = setup.import_path
    arrays = attach(setup.memory, setup.schema, setup.num_slots)
    os.close(setup.memory)
    return EnvHost(setup.config, setup.schema, arrays, setup.slots)


def _serve(channel: int, host: EnvHost) -> None:
    # The kernel closes the channel when this process ends, and nobody before: that is how the pool knows.
    os.write(channel, host.make().pack())
    while commands := os.read(channel, MAX_FRAME_BYTES):
        os.write(channel, host.run(commands).pack())


if __name__ == "__main__":
    main()
