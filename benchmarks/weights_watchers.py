"""Measures how many watchers one parameters process carries: up to 1,000, each on a connection of its own.

    python benchmarks/weights_watchers.py [--watchers 1 100 1000] [--rounds 20] [--write docs/scaling.md]

A learner publishes versions of 300 tensors, of which one changes. Each delivery is timed from the version's publish
time, which the server sets just before it writes the version down, to the moment when the watcher has the announcement.
Then the watchers do nothing for a while, which costs keepalive and watches that are opened anew; the server is killed
and started again; and the watchers are killed. Watchers, learner and server share this machine; the table says what the
server used.

`--write` also puts the figures into the page.
"""

import argparse
import os
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.processes import Child, child, cpu_s, resident_bytes
from harness.replaying import POLL_S, RUN_ID, Server, make_run, scratch, serving
from harness.report import aligned, line, medians
from harness.sizing import machine, markdown, replace_measured
from harness.watchers import SHAPE, tensor_names
from minefleet.config import EndpointConfig, ReplayBufferConfig, ServicesConfig
from minefleet.launch.ports import claim
from minefleet.rpc.channel import connect
from minefleet.rpc.handshake import shake_hands
from minefleet.rpc.parameters_client import ParametersClient
from minefleet.runs.run_yaml import Run
from minefleet_runtime.process_setup import allow_open_files

TENSORS = 300
TICK_S = 0.5
SETTLED_BYTES = 2**18
"""Memory is read once it changes by less than this within a tick."""
PART = "watchers"


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """The results for so many watchers."""

    watchers: int
    first_s: float
    """From the publish time to the first delivery; medians over the rounds."""
    median_s: float
    last_s: float
    worst_s: float
    """The latest delivery of all rounds."""
    publish_s: float
    """Until the learner has its ack."""
    cpu_s: float
    """The server's, for one publish and its deliveries."""
    bytes_each: float
    """Memory of the server per watcher."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Upkeep:
    """The cost of many watchers beside announcements."""

    idle_cores: float
    back_s: float
    """From the start of a new server, after the old one was killed, until every watcher has heard from it."""
    back_cpu_s: float
    gone_s: float
    """From the death of the watchers until the server holds no watch."""


class Fleet:
    """The watchers' processes, and the learner of their run."""

    def __init__(self, run: Run, crowds: Sequence[Child]) -> None:
        self._crowds = crowds
        self._learner = ParametersClient(run.config.services.parameters.address)
        self._version = 0
        self._learner.open_epoch(RUN_ID)

    def publish(self) -> float:
        """Publishes; returns the seconds until it was acked."""
        began_s = time.monotonic()
        self._version = self._learner.publish(weights(self._version), iteration=self._version)
        return time.monotonic() - began_s

    def grow(self, watchers: int) -> None:
        """Lets so many watch, spread over the processes."""
        shares = [len(range(start, watchers, len(self._crowds))) for start in range(len(self._crowds))]
        for crowd, share in zip(self._crowds, shares, strict=True):
            crowd.tell(watchers=share, tensors=TENSORS)
        for crowd in self._crowds:
            crowd.hear()

    def heard(self, since_s: float = 0.0) -> list[tuple[float, float]]:
        """When each watcher heard of the newest version since then, in order, and its publish time."""
        for crowd in self._crowds:
            crowd.tell(version=self._version, since_s=since_s)
        return sorted((heard_s, published_s) for crowd in self._crowds for heard_s, published_s in crowd.hear())

    def kill(self) -> None:
        """Kills the watchers."""
        for crowd in self._crowds:
            os.kill(crowd.pid, signal.SIGKILL)


def main() -> None:
    arguments = parse()
    allow_open_files()
    with scratch() as directory:
        levels, upkeep = measure_all(run_at(directory, claim(ServicesConfig()).parameters.address), arguments)
    rows = level_rows(levels)
    print(f"{aligned(rows)}\n\n{told(upkeep)}\n")
    if arguments.write is not None:
        replace_measured(arguments.write, page_part(rows, upkeep, arguments), PART)
    print("\n".join(json_lines(levels[-1], upkeep)))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--watchers", type=int, nargs="+", default=[1, 100, 1000], help="(default: 1 100 1000)")
    parser.add_argument("--rounds", type=int, default=20, help="publishes per level (default: 20)")
    parser.add_argument("--idle-s", type=float, default=60.0, help="without a publish (default: 60)")
    parser.add_argument("--processes", type=int, default=2, help="that share the watchers (default: 2)")
    parser.add_argument("--write", type=Path, help="page to put the figures into")
    return parser.parse_args()


def measure_all(run: Run, arguments: argparse.Namespace) -> tuple[list[Level], Upkeep]:
    """Measures every level, and the upkeep of the last."""
    with ExitStack() as stack:
        server = stack.enter_context(serving(run, "parameters"))
        crowds = [
            stack.enter_context(child("harness.watchers", server.address, f"crowd-{number}"))
            for number in range(arguments.processes)
        ]
        fleet = Fleet(run, crowds)
        fleet.publish()
        levels = list(measure_levels(server, fleet, arguments))
        idle_cores = idle(server, arguments.idle_s)
        os.kill(server.pid, signal.SIGKILL)
        restarted_s = time.time()
        server = stack.enter_context(serving(run, "parameters"))
        back_s = fleet.heard(since_s=restarted_s)[-1][0] - restarted_s
        back_cpu_s = cpu_s(server.pid)
        killed_s = time.monotonic()
        fleet.kill()
        while open_watches(server):
            server.outlive(POLL_S)
        upkeep = Upkeep(idle_cores=idle_cores, back_s=back_s, back_cpu_s=back_cpu_s, gone_s=time.monotonic() - killed_s)
    return levels, upkeep


def measure_levels(server: Server, fleet: Fleet, arguments: argparse.Namespace) -> Iterator[Level]:
    """Measures with more and more watchers."""
    bare_bytes = settled(server)
    for watchers in arguments.watchers:
        fleet.grow(watchers)
        bytes_each = (settled(server) - bare_bytes) / watchers
        began_cpu_s = cpu_s(server.pid)
        rounds = [measure(fleet) for _ in range(arguments.rounds)]
        used_cpu_s = cpu_s(server.pid) - began_cpu_s
        yield Level(
            watchers=watchers,
            bytes_each=bytes_each,
            cpu_s=used_cpu_s / len(rounds),
            worst_s=max(each["last_s"] for each in rounds),
            **medians(rounds),
        )
        print(f"{watchers} watchers measured", flush=True)


def measure(fleet: Fleet) -> dict[str, float]:
    """Publishes once, and waits until all watchers have heard of it."""
    publish_s = fleet.publish()
    delays_s = [heard_s - published_s for heard_s, published_s in fleet.heard()]
    return {
        "first_s": delays_s[0],
        "median_s": statistics.median(delays_s),
        "last_s": delays_s[-1],
        "publish_s": publish_s,
    }


def idle(server: Server, seconds: float) -> float:
    """Cores that the server takes while nothing is published."""
    began_cpu_s = cpu_s(server.pid)
    server.outlive(seconds)
    return (cpu_s(server.pid) - began_cpu_s) / seconds


def settled(server: Server) -> int:
    """Memory of the server, once it stands still."""
    before, now = 0, resident_bytes(server.pid)
    while abs(now - before) > SETTLED_BYTES:
        server.outlive(TICK_S)
        before, now = now, resident_bytes(server.pid)
    return now


def open_watches(server: Server) -> int:
    """The number of watchers by the server's count."""
    with connect(server.address) as channel:
        return int(shake_hands(channel, None).stats["watchers"])


def weights(version: int) -> dict[str, NDArray[np.float32]]:
    """Tensors of which one differs from every other version's."""
    names = tensor_names(TENSORS)
    return {name: np.full(SHAPE, number, np.float32) for number, name in enumerate(names[:-1])} | {
        names[-1]: np.full(SHAPE, TENSORS + version, np.float32)
    }


def run_at(directory: Path, address: str) -> Run:
    """A run whose parameters listen there, so that a new server comes where the old one was."""
    run = make_run(directory, (1,), ReplayBufferConfig(), per_lease=1)
    services = replace(run.config.services, parameters=EndpointConfig(address=address))
    run = replace(run, config=replace(run.config, services=services))
    run.write()
    return run


def level_rows(levels: Sequence[Level]) -> list[list[str]]:
    """The table of deliveries."""
    rows = ["watchers,first ms,median ms,last ms,worst last ms,publish ms,server CPU ms,kB each".split(",")]
    for level in levels:
        times_s = (level.first_s, level.median_s, level.last_s, level.worst_s, level.publish_s, level.cpu_s)
        rows.append(
            [f"{level.watchers:,}", *(f"{each * 1e3:.1f}" for each in times_s), f"{level.bytes_each / 1e3:.0f}"]
        )
    return rows


def told(upkeep: Upkeep) -> str:
    """The upkeep in a paragraph."""
    return (
        f"while nothing is published, the server takes {upkeep.idle_cores * 100:.1f} % of a core. After a kill, all "
        f"watchers have heard from the new server {upkeep.back_s:.1f} s after its start, which costs it "
        f"{upkeep.back_cpu_s:.1f} s of processor time. Of killed watchers nothing is left after {upkeep.gone_s:.1f} s."
    )


def page_part(rows: list[list[str]], upkeep: Upkeep, arguments: argparse.Namespace) -> str:
    """This machine's part of `docs/scaling.md`."""
    shared = f"Measured on {machine()}, which the server shared with {arguments.processes} processes of watchers."
    most = f"With {max(arguments.watchers):,} watchers: {told(upkeep)}"
    return "\n\n".join([shared, markdown(rows), most])


def json_lines(level: Level, upkeep: Upkeep) -> list[str]:
    """The figures of the last level; larger is better."""
    figures = {
        "last-delivery": ("1/s", 1 / level.last_s),
        "memory": ("watchers/GiB", 2**30 / level.bytes_each),
        "idle": ("watchers/core", level.watchers / upkeep.idle_cores),
        "restart": ("1/s", 1 / upkeep.back_s),
    }
    return [line("weights_watchers", f"{level.watchers}-{what}", unit, ours) for what, (unit, ours) in figures.items()]


if __name__ == "__main__":
    main()
