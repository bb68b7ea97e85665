"""Measures the machine's limit for 64 sleeping processes and one that waits for them, for `benchmarks/actor_slow.py`.

    python -m harness.acting_bare SECONDS

The processes sleep for a step, the parent for a pass over those that have answered, and they say a byte to each other:
no environment, no policy, no record. Prints steps per second.
"""

import json
import os
import select
import signal
import socket
import sys
import time

from harness.acting import SLOTS
from harness.acting_envs import SLEEP_S
from harness.acting_parts import FORWARD_S

WARM_UP_S = 2.0


def main() -> None:
    sleepers = dict(start() for _ in range(SLOTS))
    channels = {channel.fileno(): channel for channel in sleepers.values()}
    poll = select.epoll()
    for descriptor, channel in channels.items():
        poll.register(descriptor, select.EPOLLIN)
        channel.send(b"s")
    began_s, until_s = time.monotonic() + WARM_UP_S, time.monotonic() + WARM_UP_S + float(sys.argv[1])
    steps = 0
    while (now_s := time.monotonic()) < until_s:
        ready = [descriptor for descriptor, _ in poll.poll()]
        for descriptor in ready:
            channels[descriptor].recv(1)
        time.sleep(FORWARD_S)
        for descriptor in ready:
            channels[descriptor].send(b"s")
        steps += len(ready) * (now_s >= began_s)
    print(json.dumps(steps / (time.monotonic() - began_s)), flush=True)
    for pid in sleepers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def start() -> tuple[int, socket.socket]:
    """Starts a process that steps when it hears a byte; returns its id and the channel to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    while pid == 0:
        theirs.recv(1)
        time.sleep(SLEEP_S)
        theirs.send(b"s")
    theirs.close()
    return pid, ours


if __name__ == "__main__":
    main()
