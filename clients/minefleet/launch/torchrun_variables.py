"""The variables by which the ranks of a learner know themselves and find each other: those of torchrun."""

import os
import time
from collections.abc import Mapping

LEARNER = "learner"
RANK, SIZE = "RANK", "WORLD_SIZE"
LOCAL_RANK, LOCAL_SIZE = "LOCAL_RANK", "LOCAL_WORLD_SIZE"
ADDRESS, PORT = "MASTER_ADDR", "MASTER_PORT"
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
LAUNCHED = "MINEFLEET_LAUNCHED_S"
"""When the launcher began, on this machine's monotonic clock: a learner that is started again stays in its launch."""
LOOPBACK = "127.0.0.1"
LOOPBACK_INTERFACE = "lo"


def is_rank(name: str) -> bool:
    """Whether a role of this name is the learner, or one of its ranks."""
    return name.partition("-")[0] == LEARNER


def rank_here() -> int:
    """The rank of this process; 0 where nobody said."""
    return int(os.environ.get(RANK, "0"))


def local_rank_here() -> int:
    """Its rank among those on this machine; 0 where nobody said."""
    return int(os.environ.get(LOCAL_RANK, "0"))


def size_here() -> int:
    """The number of ranks started with this one, itself included; 1 where that is not given."""
    return int(os.environ.get(SIZE, "1"))


def ranks_on_this_machine() -> int:
    """The number of ranks that share this machine."""
    return int(os.environ.get(LOCAL_SIZE, "1"))


def launch_age_s() -> float:
    """Seconds since this launch of the run, restarts of the learner included; since now where there is no launcher."""
    now = time.monotonic()
    return now - float(os.environ.get(LAUNCHED, now))


def variables(rank: int, size: int, port: int) -> Mapping[str, str]:
    """Those of one of `size` ranks on this machine, launched now, which talk over the loopback interface only."""
    numbers = {RANK: rank, LOCAL_RANK: rank, SIZE: size, LOCAL_SIZE: size, PORT: port}
    named = {ADDRESS: LOOPBACK, LAUNCHED: str(time.monotonic()), **dict.fromkeys(INTERFACES, LOOPBACK_INTERFACE)}
    return {name: str(number) for name, number in numbers.items()} | named
