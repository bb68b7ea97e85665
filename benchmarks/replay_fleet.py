"""Measures how many actors one replay process carries: up to 1,000 simulated ones, and a learner that takes all they
send.

    python benchmarks/replay_fleet.py [--actors 1000] [--compression 1 3 25] [--write docs/scaling.md]

Every actor has one environment of 128 x 128 x 3 frames, one stream and one connection, and appends a fragment of
`--length` steps on schedule: an open loop. The load doubles, first with more actors, then with faster ones, until it is
not carried: 1 % of the fragments are refused, or acked after their actor's next one was due, or 5 % do not arrive, or
some are evicted. Then the largest load that is carried is closed in on. A consumer leases, reads and acks everything:
each byte goes in and out, and the store stays small. Actors, consumer and replay share this machine; the table says how
many cores each used.

`--write` also puts the figures and the sizing table into the page.
"""

import argparse
import math
import resource
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.levels import Level, largest_carried, level_rows, ramp_lines
from harness.processes import Child, child, disk_bytes, resident_bytes
from harness.replaying import Server, make_run, scratch, serving
from harness.report import aligned, line
from harness.sizing import HEADROOM, Cost, fit, machine, markdown, replace_measured, sizing_rows
from minefleet.config import ReplayBufferConfig
from minefleet.rpc.replay_types import NO_POSITION
from minefleet.v1 import status_service_pb2

FIRST_LOAD = 16
PER_LEASE = 32
MAX_CHUNKS = 1024
HALVINGS = 3
TICK_S = 1.0
"""Interval at which replay updates its status."""
SETTLED_SHARE = 0.01
"""Memory is read once it changes by less than this within a tick."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """A replay process, its consumer, and the processes of its actors."""

    server: Server
    crowds: list[Child]

    def ask(self, actors: int, **question: Any) -> list[dict[str, Any]]:
        """Lets so many actors act, spread over the processes."""
        shares = [len(range(start, actors, len(self.crowds))) for start in range(len(self.crowds))]
        for crowd, share in zip(self.crowds, shares, strict=True):
            crowd.tell(actors=share, **question)
        return [crowd.hear() for crowd in self.crowds]

    def drain(self) -> None:
        """Waits until the consumer has taken all whole iterations."""
        while self.figure("held_chunks") >= PER_LEASE:
            self.server.outlive(TICK_S)

    def figure(self, name: str) -> int:
        """One of the figures on replay's board."""
        with self.server.client(status_service_pb2.ROLE_ACTOR, NO_POSITION) as client:
            return int(client.describe().stats[name])


def main() -> None:
    arguments = parse()
    allow_files(4 * arguments.actors)
    idle = measure_idle(arguments)
    print(f"idle streams: {idle['memory']:,.0f} bytes of memory and {idle['disk']:,.0f} of disk each\n", flush=True)
    ramps = {compression: ramp(compression, arguments) for compression in arguments.compression}
    peaks = [largest_carried(levels) for levels in ramps.values()]
    cost = fit([peak.payload_bytes for peak in peaks], [peak.acked_per_s for peak in peaks])
    sizes = sizing_rows(cost, arguments.compression, arguments.length, arguments.steps_per_s)
    print(f"actors per shard\n{aligned(sizes)}\n")
    if arguments.write is not None:
        replace_measured(arguments.write, page_part(idle, ramps, cost, sizes, arguments))
    lines = [each for pair in ramps.items() for each in ramp_lines(*pair, arguments.steps_per_s)]
    print("\n".join(idle_lines(idle) + lines))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, default=1000, help="most actors (default: 1000)")
    parser.add_argument("--compression", type=float, nargs="+", default=[1, 3, 25])
    parser.add_argument("--frame", type=int, default=128, help="height and width of frames (default: 128)")
    parser.add_argument("--length", type=int, default=64, help="steps per fragment (default: 64)")
    parser.add_argument("--steps-per-s", type=float, default=30.0, help="of an environment (default: 30)")
    parser.add_argument("--seconds", type=float, default=10.0, help="measured per load, after a warm-up")
    parser.add_argument("--processes", type=int, default=2, help="that share the actors (default: 2)")
    parser.add_argument("--write", type=Path, help="page to put the figures into")
    return parser.parse_args()


def allow_files(wanted: int) -> None:
    """Raises the limit of open files, which child processes inherit: each actor takes one on either side."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, wanted), hard), hard))


@contextmanager
def fleet_of(arguments: argparse.Namespace) -> Iterator[Fleet]:
    """A fresh replay with its consumer and its actors' processes."""
    with scratch() as directory, ExitStack() as stack:
        buffer = ReplayBufferConfig(max_chunks=MAX_CHUNKS, pacing="off")
        run = make_run(directory, (arguments.frame, arguments.frame, 3), buffer, PER_LEASE)
        server = stack.enter_context(serving(run))
        place = (str(directory), server.address)
        consumer = stack.enter_context(child("harness.fleet_consumer", *place))
        pids = (str(server.pid), str(consumer.pid))
        crowds = [
            stack.enter_context(child("harness.fleet_actors", *place, f"crowd-{number}", *pids))
            for number in range(arguments.processes)
        ]
        yield Fleet(server, crowds)


def measure_idle(arguments: argparse.Namespace) -> dict[str, float]:
    """Bytes that an idle stream costs: one that is connected, and whose only fragment was consumed."""
    question = {"period_s": 0, "seconds": 0, "length": 1, "compression": 25}
    with fleet_of(arguments) as fleet:
        store, first = fleet.server.run.replay, arguments.actors // 10
        fleet.ask(first, **question)
        memory, disk = settled(fleet), disk_bytes(store)
        fleet.ask(arguments.actors, **question)
        added = arguments.actors - first
        return {"memory": (settled(fleet) - memory) / added, "disk": (disk_bytes(store) - disk) / added}


def settled(fleet: Fleet) -> int:
    """Memory of replay, once it stands still."""
    before, now = 0, resident_bytes(fleet.server.pid)
    while abs(now - before) > SETTLED_SHARE * now:
        fleet.server.outlive(TICK_S)
        before, now = now, resident_bytes(fleet.server.pid)
    return now


def ramp(compression: float, arguments: argparse.Namespace) -> list[Level]:
    """Doubles the load until it is not carried, twice, and halves the gap between the last two loads a few times."""
    levels: list[Level] = []
    with fleet_of(arguments) as fleet:

        def carries(load: int) -> bool:
            fleet.drain()
            actors = min(load, arguments.actors)
            levels.append(measure(fleet, actors, arguments.steps_per_s * load / actors, compression, arguments))
            print(f"{compression:g}x: {load} actors' load, {levels[-1].acked_per_s:.1f} fragments/s", flush=True)
            return levels[-1].is_carried

        load = FIRST_LOAD
        while carries(load) or carries(load):
            load *= 2
        least, most = load // 2, load
        for _ in range(HALVINGS):
            middle = round(math.sqrt(least * most))
            least, most = (middle, most) if carries(middle) else (least, middle)
    levels.sort(key=lambda level: level.offered_per_s)
    print(f"{aligned(level_rows(levels))}\n", flush=True)
    return levels


def measure(fleet: Fleet, actors: int, steps_per_s: float, compression: float, arguments: argparse.Namespace) -> Level:
    """One load."""
    period_s = arguments.length / steps_per_s
    seconds = period_s * math.ceil(arguments.seconds / period_s)
    evicted = fleet.figure("evicted_fragments")
    answers = fleet.ask(actors, period_s=period_s, seconds=seconds, length=arguments.length, compression=compression)
    latencies_s = sorted(latency_s for answer in answers for latency_s in answer["latencies_s"])
    acked = sum(answer["acked"] for answer in answers)
    return Level(
        actors=actors,
        steps_per_s=steps_per_s,
        offered_per_s=actors / period_s,
        acked_per_s=acked / seconds,
        raw_gb_per_s=acked * answers[0]["raw_bytes"] / seconds / 1e9,
        payload_bytes=answers[0]["payload_bytes"],
        ack_p50_s=statistics.median(latencies_s),
        ack_p99_s=latencies_s[int(0.99 * len(latencies_s))],
        late=sum(answer["late"] for answer in answers) / len(latencies_s),
        refused=sum(answer["refused"] for answer in answers) / len(latencies_s),
        evicted=fleet.figure("evicted_fragments") - evicted,
        actor_cores=sum(answer["cpu_s"][0] for answer in answers) / seconds,
        replay_cores=answers[0]["cpu_s"][1] / seconds,
        consumer_cores=answers[0]["cpu_s"][2] / seconds,
    )


def idle_lines(idle: dict[str, float]) -> list[str]:
    """JSON lines: idle streams per GiB, of memory and of disk."""
    return [line("replay_fleet", f"idle-{what}", "streams/GiB", 2**30 / each) for what, each in idle.items()]


def page_part(
    idle: dict[str, float],
    ramps: dict[float, list[Level]],
    cost: Cost,
    sizes: list[list[str]],
    arguments: argparse.Namespace,
) -> str:
    """This machine's part of `docs/scaling.md`."""
    parts = [
        f"Measured on {machine()}, which replay shared with {arguments.processes} processes of simulated actors and a "
        f"consumer; frames of {arguments.frame} x {arguments.frame} x 3, T = {arguments.length}.",
        f"An idle stream, connected: {idle['memory'] / 1e3:,.1f} kB of memory, {idle['disk'] / 1e3:,.1f} kB of disk.",
    ]
    for compression, levels in ramps.items():
        parts += [f"Packed {compression:g}-fold:", markdown(level_rows(levels))]
    parts += [
        f"c₀ = {cost.per_fragment_s * 1e3:.2f} ms per fragment, c₁ = {cost.per_byte_s * 1e9:.2f} s per packed GB.",
        f"Actors of one environment each per shard, at {arguments.steps_per_s:g} steps/s and {HEADROOM * 100:.0f} % of "
        f"the saturation, T = {arguments.length}:",
        markdown(sizes),
    ]
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
