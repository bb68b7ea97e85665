"""An environment process, started by way of `interpreter_command` with

serve CHANNEL PARENT               pool ──commands──▶ channel ──▶ EnvHost.run ──▶ channel ──reply──▶ pool
describe FILE PARENT QUESTION      makes the environment once, and writes what it is to the file: see `probe`

It waits for its channel and for nothing else. It ends when the channel closes, which the kernel does when the pool
dies, or when SIGTERM comes, which the kernel sends when its parent dies: it closes its environments, then kills what
they have started and not ended, and itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from minefleet_env import process_tree
from minefleet_env.batched.batched_env_host import make_host
from minefleet_env.env_probe import CLOSE_S, reply
from minefleet_env.process_messages import MAX_FRAME_BYTES, Setup, unpack_setup
from minefleet_env.shared_slot_arrays import attach

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import NoReturn

    from minefleet_env.env_command_execution import EnvHost

ALL_CORES = "MINEFLEET_ALL_CORES"
"""Set by the launcher of a pinned actor: the cores of its environments, as in `0,1,5`."""


class AskedToStop(BaseException):
    """A signal asks this process to end. Not `SystemExit`, which an environment may raise as any other error."""


def main() -> None:
    """Runs until the channel closes, or until there is an answer."""
    job, descriptor, parent_pid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    _tie_to(parent_pid)
    cores = _spread_out()
    os.set_inheritable(descriptor, False)
    if job == "describe":
        _describe(descriptor, json.loads(sys.argv[4]))
    else:
        _serve(descriptor, cores)
    process_tree.kill_tree(os.getpid())


def _describe(file: int, question: Mapping[str, Any]) -> None:
    _extend_path(question["import_path"])
    with contextlib.suppress(AskedToStop), os.fdopen(file, "w") as answer:
        json.dump(reply(question), answer)


def _serve(channel: int, cores: Sequence[int]) -> None:
    setup = unpack_setup(os.read(channel, MAX_FRAME_BYTES))
    _set_up_process(setup, cores)
    host = _host(setup)
    with contextlib.suppress(AskedToStop, BrokenPipeError):
        _run(channel, host)
        # Inside, so that a signal that comes now ends the serving and not what follows.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.alarm(CLOSE_S)  # The process is killed then, also without a parent.
    host.close()


def _tie_to(parent_pid: int) -> None:
    """Makes this process end with its parent, and only then: Ctrl-C is the parent's to judge."""
    if os.getpgrp() != os.getpid():
        sys.exit("an environment process leads a group of its own; start it through EnvPool")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _exit)
    process_tree.adopt_orphans()
    if not process_tree.tie_to(parent_pid):
        sys.exit("the parent is gone")


def _spread_out() -> list[int]:
    """Leaves the cores of a pinned parent to it, for all that its launcher has; returns those."""
    cores = [int(core) for core in os.environ.pop(ALL_CORES, "").split(",") if core]
    if cores:
        os.sched_setaffinity(0, cores)
    return cores


def _set_up_process(setup: Setup, cores: Sequence[int]) -> None:
    """Keeps to one core where the actor has as many processes as there are cores, and environments run in turn anyway.

    What they start, such as an engine, stays with them: it is woken faster on the core on which it was asked.
    """
    if len(setup.slots) > 1 and setup.processes == len(cores):
        os.sched_setaffinity(0, [cores[setup.index]])


def _exit(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise AskedToStop


def _host(setup: Setup) -> EnvHost:
    _extend_path(setup.import_path)
    arrays = attach(setup.memory, setup.schema, setup.num_slots, setup.frame_shape)
    os.close(setup.memory)
    return make_host(setup.config, setup.schema, arrays, setup.slots, setup.discount)


def _extend_path(places: Iterable[str]) -> None:
    sys.path += [place for place in places if place not in sys.path]


def _run(channel: int, host: EnvHost) -> None:
    # The kernel closes the channel when this process ends, and nobody before: that is how the pool knows.
    os.write(channel, host.make().pack())
    while True:
        commands = os.read(channel, MAX_FRAME_BYTES)
        if not commands:
            return
        os.write(channel, host.run(commands).pack())


if __name__ == "__main__":
    main()
