"""The variables by which the ranks of a learner know themselves and find each other: those of torchrun."""

import os
from collections.abc import Mapping

RANK, SIZE = "RANK", "WORLD_SIZE"
LOCAL_RANK, LOCAL_SIZE = "LOCAL_RANK", "LOCAL_WORLD_SIZE"
ADDRESS, PORT = "MASTER_ADDR", "MASTER_PORT"
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
LOOPBACK = "127.0.0.1"
LOOPBACK_INTERFACE = "lo"


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


def variables(rank: int, size: int, port: int) -> Mapping[str, str]:
    """Those of one of `size` ranks on this machine, which talk over the loopback interface only."""
    numbers = {RANK: rank, LOCAL_RANK: rank, SIZE: size, LOCAL_SIZE: size, PORT: port}
    named = {ADDRESS: LOOPBACK, **dict.fromkeys(INTERFACES, LOOPBACK_INTERFACE)}
    return {name: str(number) for name, number in numbers.items()} | named
