"""Measures the cost of failing environments, and verifies that no failed step is stored.

    python benchmarks/actor_faulty.py [--slots 32] [--seconds 300] [--calm-seconds 60]

A real actor plays `harness/faulty.py`, whose steps take 50 ms: without faults, with all of them, and without again.
Each environment fails about every 200 steps, in every way that there is. Then every stored step is looked at: see
`harness/auditing.py`. Case `faulty`: steps/s with faults (ours) and without (limit). It fails when anything is left
behind, memory grows or the audit finds a fault.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.auditing import Audit
from harness.faulty import LIFE_FAULTS, RESET_FAULTS, STEP_FAULTS
from harness.faulty_fleet import Vitals, env_steps, faulty_fleet, vitals
from harness.replaying import Server
from harness.report import aligned, line
from minefleet.config import WorkerConfig

STEPS_PER_FAULT = 200
STEP_S = 0.05
EPISODE_LENGTH = 50
MAX_RSS_BYTES = 96 * 2**20
"""A process takes half of it while it does not leak."""
WARM_UP_S = 5.0
TICK_S = 1.0
FLAT = 1.02
"""A figure that must not grow may be larger by this factor in the last third than in the middle one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """One actor's life."""

    steps_per_s: float
    vitals: list[Vitals]
    left_behind: set[int]
    audit: Audit


def main() -> None:
    arguments = parse()
    plan: list[tuple[str, dict[str, float], float]] = [
        ("calm", {}, arguments.calm_seconds),
        ("faulty", fault_rates(), arguments.seconds),
        ("calm again", {}, arguments.calm_seconds),
    ]
    stretches = {name: stretch(arguments.slots, faults, seconds) for name, faults, seconds in plan}
    print(f"{aligned([*rows(stretches)])}\n")
    print(f"failures: {dict(stretches['faulty'].audit.failures.most_common())}\n")
    limit = statistics.fmean(stretches[name].steps_per_s for name in ("calm", "calm again"))
    problems = [problem for name, each in stretches.items() for problem in problems_of(name, each)]
    print(
        "\n".join([*problems, line("actor_faulty", "faulty", "steps/s", stretches["faulty"].steps_per_s, limit=limit)])
    )
    sys.exit(bool(problems))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=300.0, help="with faults (default: 300)")
    parser.add_argument("--calm-seconds", type=float, default=60.0, help="without, before and after (default: 60)")
    return parser.parse_args()


def fault_rates() -> dict[str, float]:
    """Each kind as often as each other, and one in so many steps altogether."""
    kinds = len(STEP_FAULTS) + len(RESET_FAULTS)
    per_step = 1 / STEPS_PER_FAULT / kinds
    steps, resets = dict.fromkeys(STEP_FAULTS, per_step), dict.fromkeys(RESET_FAULTS, per_step * EPISODE_LENGTH)
    return steps | resets | dict.fromkeys(LIFE_FAULTS, 1 / kinds)


def stretch(slots: int, faults: dict[str, float], seconds: float) -> Stretch:
    """Lets an actor act for so long, in a fleet of its own."""
    worker = WorkerConfig(
        num_envs=slots,
        step_timeout_s=1.0,
        reset_timeout_s=2.0,
        start_timeout_s=60.0,
        max_rss_bytes=MAX_RSS_BYTES,
        max_consecutive_failures=20,
    )
    with (
        tempfile.TemporaryDirectory() as directory,
        faulty_fleet(
            Path(directory), faults, worker, step_s=STEP_S, start_s=2.0, episode_length=EPISODE_LENGTH
        ) as fleet,
    ):
        with fleet.acting() as actor:
            actor.outlive(WARM_UP_S)
            steps_per_s, samples = measure(actor, seconds)
        return Stretch(steps_per_s=steps_per_s, vitals=samples, left_behind=fleet.left_behind(), audit=fleet.audit())


def measure(actor: Server, seconds: float) -> tuple[float, list[Vitals]]:
    """Steps per second, and the actor's vitals each second."""
    began_s, before, samples = time.monotonic(), env_steps(actor), list[Vitals]()
    while time.monotonic() - began_s < seconds:
        actor.outlive(TICK_S)
        samples.append(vitals(actor.pid))
    return (env_steps(actor) - before) / (time.monotonic() - began_s), samples


def rows(stretches: dict[str, Stretch]) -> list[list[str]]:
    head = [
        "",
        "steps/s",
        "steps",
        "episodes",
        "failures",
        "rss MB: middle",
        "last",
        "descriptors",
        "last",
        "mapped",
        "last",
    ]
    table = [head]
    for name, each in stretches.items():
        found = each.audit
        counts = [f"{count:,}" for count in (found.steps, found.episodes, found.failures.total())]
        table.append(
            [name, f"{each.steps_per_s:.1f}", *counts, *(f"{figure:,.1f}" for pair in growth(each) for figure in pair)]
        )
    return table


def growth(each: Stretch) -> list[tuple[float, float]]:
    """Memory in MB, descriptors and mapped files: medians of the middle third and of the last."""
    third = len(each.vitals) // 3
    middle, last = each.vitals[third : 2 * third], each.vitals[2 * third :]

    def median(samples: Sequence[Vitals]) -> list[float]:
        columns = zip(*((one.rss_bytes / 1e6, one.descriptors, one.mappings) for one in samples), strict=True)
        return [statistics.median(column) for column in columns]

    return list(zip(median(middle), median(last), strict=True))


def problems_of(name: str, each: Stretch) -> list[str]:
    """The violations."""
    problems = [f"{name}: {fault}" for fault in each.audit.faults[:20]]
    if len(each.audit.faults) > 20:
        problems.append(f"{name}: {len(each.audit.faults)} faults altogether")
    if each.left_behind:
        problems.append(f"{name}: processes are left: {sorted(each.left_behind)}")
    for what, (middle, last) in zip(("memory in MB", "descriptors", "mapped files"), growth(each), strict=True):
        if last > FLAT * middle:
            problems.append(f"{name}: {what} grew from {middle:.1f} to {last:.1f}")
    return problems


if __name__ == "__main__":
    main()
