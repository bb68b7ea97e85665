"""Processor time: of this machine's cores, and of this process with all that it has started."""

import os
from collections.abc import Iterator
from contextlib import suppress

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from minefleet_runtime.process_setup import all_cores


def busy_seconds() -> float:
    """Time that the cores of this fleet were busy, since the machine started.

    What the limits of a container take away is not seen.
    """
    times = psutil.cpu_times(percpu=True)
    busy = (times[core] for core in all_cores() if core < len(times))
    return float(sum(each.user + each.nice + each.system + each.irq + each.softirq + each.steal for each in busy))


def family_seconds(pid: int) -> float:
    """Processor time of a process and all below it, ended ones included; 0 where it is gone."""
    seconds = 0.0
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for member in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = member.cpu_times()
                seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def own_stats() -> dict[str, float]:
    """This role's processor time, for its status."""
    return {"processor_seconds": family_seconds(os.getpid())}


class ProcessorCollector(Collector):
    """Processor time at the moment of the scrape. A process that ends meanwhile may be missed for once."""

    def __init__(self) -> None:
        self._most_s = 0.0

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Of the role, and of the cores that it may use."""
        self._most_s = max(self._most_s, family_seconds(os.getpid()))
        yield CounterMetricFamily(
            "minefleet_processor_seconds",
            "Processor time of the role and of all processes below it.",
            value=self._most_s,
        )
        yield CounterMetricFamily(
            "minefleet_machine_busy_seconds",
            "Time that the cores which the role may use were busy, with anything, summed over cores.",
            value=busy_seconds(),
        )
        yield GaugeMetricFamily(
            "minefleet_machine_cores", "Cores that the role may use.", value=len(os.sched_getaffinity(0))
        )
