"""Processor time, as Linux counts it: of this machine's cores, and of this process with all that it has started."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from minefleet_runtime.cores import all_cores

STAT = Path("/proc/stat")
PROCESSES = Path("/proc")
IDLE = (3, 4)
"""Columns of /proc/stat that are no work: idle, and waiting for disks."""
COLUMNS = 8
"""Those that follow count guests, which `user` has already."""
OWN_TIMES = slice(11, 15)
"""Of what follows the name in /proc/PID/stat: user and system, its own and those of children that have ended."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class CoreTime(NamedTuple):
    """Seconds summed over the cores that this process may use, since the machine started."""

    busy_s: float
    total_s: float


def core_time(stat: str, cores: frozenset[int]) -> CoreTime:
    """Reads the text of /proc/stat."""
    busy = total = 0
    for line in stat.splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            ticks = [int(column) for column in columns[:COLUMNS]]
            total += sum(ticks)
            busy += sum(ticks) - sum(ticks[column] for column in IDLE)
    return CoreTime(busy / TICKS_PER_S, total / TICKS_PER_S)


def own_cores() -> CoreTime:
    """Of the cores that this fleet may use on this machine. What limits of a container take away is not seen."""
    return core_time(STAT.read_text(), all_cores())


def family_seconds(pid: int) -> float:
    """Processor time of a process and all below it, ended ones included; 0 where it is gone."""
    text = _read(PROCESSES / str(pid) / "stat")
    if not text:
        return 0.0
    times = text.rpartition(")")[2].split()[OWN_TIMES]
    listed = (PROCESSES / str(pid) / "task").glob("*/children")
    children = [int(child) for path in listed for child in _read(path).split()]
    return sum(map(int, times)) / TICKS_PER_S + sum(map(family_seconds, children))


def _read(path: Path) -> str:
    """A file of a process or thread; empty where that has ended."""
    try:
        return path.read_text()
    except OSError:
        return ""


def own_figures() -> dict[str, float]:
    """This role's processor time, as its board says it."""
    return {"processor_seconds": family_seconds(os.getpid())}


class ProcessorCollector(Collector):
    """Processor time at the moment of the scrape. A process that ends meanwhile may be missed for once."""

    def __init__(self) -> None:
        self._most_s = 0.0

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Of the role, and of the cores that it may use."""
        cores = own_cores()
        self._most_s = max(self._most_s, family_seconds(os.getpid()))
        yield CounterMetricFamily(
            "minefleet_processor_seconds",
            "Processor time of the role and of all processes below it.",
            value=self._most_s,
        )
        yield CounterMetricFamily(
            "minefleet_machine_busy_seconds",
            "Time that the cores which the role may use were busy, whoever used them, summed over cores.",
            value=cores.busy_s,
        )
        yield GaugeMetricFamily(
            "minefleet_machine_cores", "Cores that the role may use.", value=len(os.sched_getaffinity(0))
        )
