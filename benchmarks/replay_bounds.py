"""Replay: what its directory and memory come to while ten times `max_bytes` go through it, and whether it stays alive.

    python benchmarks/replay_bounds.py [--gigabytes 10] [--max-gigabytes 1] [--case consumed evicted held]

Two processes append incompressible fragments of 30 kB, 800 kB and 12 MB as fast as replay takes them.

    consumed  a learner leases chunks and acks them
    evicted   nobody leases anything
    held      a learner leases chunks drawn uniformly, four leases at a time, and never gives them back

Meanwhile the real size of the directory, replay's memory and the answers of /healthz are looked at from outside.
"""

import argparse
import json
import multiprocessing
import os
import random
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Literal

from minefleet.rpc.replay_types import Order
from minefleet.runs.run_yaml import Run, read_run
from replay_opening import PATIENCE_S, client_of, header_of, make_run, resident_bytes, running

Case = Literal["consumed", "evicted", "held"]
CASES: tuple[Case, ...] = ("consumed", "evicted", "held")

SIZES = (30_000, 800_000, 12_000_000)
WEIGHTS = (400, 15, 1)
"""About a third of the bytes each."""

ACTORS = 2
PER_LEASE = 64
HELD_LEASES = 4
SPREAD = 8
"""Chunks that are there per chunk that is drawn."""

LOOK_S = 0.05
HEALTH_LIMIT_S = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--max-gigabytes", type=float, default=1.0)
    parser.add_argument("--case", nargs="+", choices=CASES, default=CASES)
    arguments = parser.parse_args()
    max_bytes = int(arguments.max_gigabytes * 10**9)
    for case in arguments.case:
        with tempfile.TemporaryDirectory() as scratch:
            watch = flow(Path(scratch), case, max_bytes, int(arguments.gigabytes * 10**9))
        print(f"{case}: {watch}", flush=True)
        for name, unit, ours, limit in (
            ("disk", "B", watch.peak_disk_bytes, max_bytes),
            ("memory-growth", "ratio", watch.memory_growth, 1.1),
            ("health", "s", watch.slowest_health_s, HEALTH_LIMIT_S),
        ):
            line = {"benchmark": "replay_bounds", "case": f"{case}-{name}", "unit": unit, "ours": ours, "peer": None}
            print(json.dumps(line | {"limit": limit, "ratio_peer": None, "ratio_limit": limit / ours}), flush=True)


@dataclass(slots=True)
class Watch:
    """Observations from outside."""

    peak_disk_bytes: int = 0
    resident: list[int] = field(default_factory=list)
    slowest_health_s: float = 0.0
    looks: int = 0
    seconds: float = 0.0
    stats: dict[str, float] = field(default_factory=dict)

    @property
    def memory_growth(self) -> float:
        """Memory in the last third over that in the second."""
        third = max(1, len(self.resident) // 3)
        return fmean(self.resident[-third:]) / fmean(self.resident[-2 * third : -third] or self.resident)

    def __str__(self) -> str:
        return (
            f"{self.seconds:.0f} s, {self.looks} looks; directory at most {self.peak_disk_bytes / 1e6:.0f} MB; memory "
            f"at most {max(self.resident) / 1e6:.0f} MB, {self.memory_growth:.3f} times in the last third; slowest "
            f"answer {self.slowest_health_s:.3f} s; appended {self.stats['appended_fragments']:.0f}, evicted "
            f"{self.stats['evicted_fragments']:.0f}, trained {self.stats['trained_fragments']:.0f}"
        )


def flow(directory: Path, case: Case, max_bytes: int, total_bytes: int) -> Watch:
    """Sends so many bytes through a fresh replay."""
    run = make_run(directory, max_bytes=max_bytes, max_chunks=10**6, max_staleness=10**6)
    spawn = multiprocessing.get_context("spawn")
    watch = Watch()
    with running(run) as process, watching(watch, run, process.pid):
        began = time.monotonic()
        actors = [
            spawn.Process(target=act, args=(run.directory, f"actor-{number}", total_bytes // ACTORS))
            for number in range(ACTORS)
        ]
        learner = spawn.Process(target=learn, args=(run.directory, case), daemon=True)
        for child in [*actors, learner]:
            child.start()
        for actor in actors:
            actor.join()
        learner.terminate()
        learner.join()
        watch.seconds = time.monotonic() - began
        if any(actor.exitcode for actor in actors):
            raise RuntimeError("an actor failed")
        with client_of(run) as client:
            watch.stats = dict(client.describe().stats)
    return watch


def act(directory: Path, stream: str, total_bytes: int) -> None:
    """Appends so many bytes."""
    run, rng = read_run(directory), random.Random(stream)
    noise = os.urandom(4 * max(SIZES))
    sent, sequence, version = 0, 0, 1
    with client_of(run) as client:
        while sent < total_bytes:
            size = rng.choices(SIZES, WEIGHTS)[0]
            start = rng.randrange(len(noise) - size)
            payload = noise[start : start + size]
            version = max(
                1, client.append([(header_of(run, stream, sequence, payload, version), payload)]).newest_version
            )
            sent += size
            sequence += 1


def learn(directory: Path, case: Case) -> None:
    """Leases chunks as the case says."""
    run = read_run(directory)
    if case == "evicted":
        return
    number, pause = 0, threading.Event()
    with client_of(run) as client:
        while case == "consumed" or number < HELD_LEASES:
            if case == "held" and client.describe().stats["held_chunks"] < SPREAD * HELD_LEASES * PER_LEASE:
                pause.wait(LOOK_S)
                continue
            number += 1
            order: Order = "uniform" if case == "held" else "least_used"
            lease = client.lease(number, steps=PER_LEASE, use_version=1, wait_s=PATIENCE_S, order=order)
            if case == "consumed" and lease.chunks:
                client.ack(number)


@contextmanager
def watching(watch: Watch, run: Run, pid: int) -> Iterator[None]:
    """Looks at a replay until the block ends."""
    stopping = threading.Event()

    def look() -> None:
        while not stopping.wait(LOOK_S):
            watch.looks += 1
            watch.peak_disk_bytes = max(watch.peak_disk_bytes, disk_bytes(run.replay))
            watch.resident.append(resident_bytes(pid))

    def ask() -> None:
        url = f"http://{run.config.services.replay[0].metrics_address}/healthz"
        while not stopping.wait(LOOK_S):
            began = time.monotonic()
            with urllib.request.urlopen(url, timeout=60.0) as answer:
                answer.read()
            watch.slowest_health_s = max(watch.slowest_health_s, time.monotonic() - began)

    threads = [threading.Thread(target=look), threading.Thread(target=ask)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


def disk_bytes(directory: Path) -> int:
    """The disk that a directory's files take. Files that vanish meanwhile take nothing."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += Path(folder, name).stat().st_blocks * 512
            except FileNotFoundError:
                continue
    return total


if __name__ == "__main__":
    main()
