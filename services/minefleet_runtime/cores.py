"""The cores of this machine that a fleet may use."""

import os

from minefleet.launch.placement import ALL_CORES


def all_cores() -> frozenset[int]:
    """Those of its launcher, also where that has tied this process to some of them; else this process's own."""
    told = os.environ.get(ALL_CORES, "")
    return frozenset(map(int, told.split(","))) if told else frozenset(os.sched_getaffinity(0))
