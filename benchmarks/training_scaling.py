"""Whole training as work grows: steps per second by environments and by actors, and what is used up first.

    python benchmarks/training_scaling.py [--seconds 30] [--cores 2] [--picture docs/images/training_scaling.png]

    environments  1 to 32 of `pixels` in `benchmarks/training.py`, of one actor
    actors        1, 2 and 4 with 16 environments each, on one replay

Beside each rate stand the cores that each role used, how busy each core was, whoever used it, and how much of its time
the learner waited for steps. What is used up is named: all cores; one core, and who used most; the learner's time; or
nothing, where steps wait for each other.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np

from harness.acting_envs import make_bank
from harness.report import aligned, line
from harness.whole_cases import CORES, share_cores
from harness.whole_ours import train

CASE = "pixels"
USED_UP = 0.95
"""Share of a core from which on it is."""
SLOTS = "rollout_config.worker_config.num_envs"
PER_PROCESS = "rollout_config.worker_config.envs_per_process"
WORKERS = "rollout_config.num_rollout_workers"
ROLES = ("actor", "environments", "replay", "parameters", "learner", "launcher")


@dataclass(frozen=True, kw_only=True)
class Level:
    """The results of one amount of work."""

    work: int
    """Environments, or actors."""
    steps_per_s: float
    cores: Mapping[str, float]
    """That each role used."""
    busy: Sequence[float]
    """Share of the time of each core, whoever used it."""
    learner_waits: float
    """Share of the learner's time."""

    @property
    def used_up(self) -> str:
        """The resources that are used up."""
        busiest = max(self.cores, key=self.cores.__getitem__)
        if min(self.busy) >= USED_UP:
            return f"all cores, by {busiest} most"
        if max(self.busy) >= USED_UP:
            return f"a core, by {busiest} most"
        return "the learner's time" if self.learner_waits <= 1 - USED_UP else "nothing"


Sweeps = dict[str, list[Level]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, nargs="*", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--actors", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--warm-up", type=float, default=20.0, metavar="SECONDS")
    parser.add_argument("--cores", type=int, default=CORES)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="keys of our configuration")
    parser.add_argument("--picture", type=Path, help="file that the sweeps are drawn to")
    arguments = parser.parse_args()
    cores = len(share_cores(arguments.cores))
    make_bank()
    sweeps: Sweeps = {"environments": [], "actors": []}
    for work in arguments.envs:
        sweeps["environments"].append(measure(work, [f"{SLOTS}={work}", f"{PER_PROCESS}={work}"], arguments))
    for work in arguments.actors:
        sweeps["actors"].append(measure(work, [f"{WORKERS}={work}"], arguments))
    for name, levels in sweeps.items():
        print(aligned(rows_of(name, levels)))
    if arguments.picture is not None:
        draw(sweeps, cores, arguments.picture)
    for name, levels in sweeps.items():
        for level in levels:
            print(line("training_scaling", f"{name}-{level.work}", "steps/s", level.steps_per_s))


def measure(work: int, overrides: list[str], arguments: argparse.Namespace) -> Level:
    """Trains with so much work."""
    seconds = arguments.warm_up + arguments.seconds
    trace = train(CASE, [*overrides, *arguments.set], seed=0, seconds=seconds)
    steady = trace.steady(arguments.warm_up, arguments.seconds)
    level = Level(
        work=work,
        steps_per_s=trace.rate(arguments.warm_up, arguments.seconds),
        cores=trace.watch.cores(arguments.seconds),
        busy=trace.watch.busy(arguments.seconds),
        learner_waits=mean(row.waited for row in steady),
    )
    print(f"{' '.join(overrides)}: {level.steps_per_s:.0f} steps/s", flush=True)
    return level


def rows_of(name: str, levels: Sequence[Level]) -> list[list[str]]:
    """A sweep as a table."""
    rows = [[name, "steps/s", *(f"{role}, cores" for role in ROLES), "cores busy", "learner waits", "used up"]]
    for level in levels:
        used = [f"{level.cores.get(role, 0.0):.2f}" for role in ROLES]
        busy = " ".join(f"{share:.0%}" for share in level.busy)
        rows.append(
            [str(level.work), f"{level.steps_per_s:.0f}", *used, busy, f"{level.learner_waits:.0%}", level.used_up]
        )
    return rows


def draw(sweeps: Sweeps, cores: int, picture: Path) -> None:
    """Draws a column per sweep: steps per second, and below it the cores that each role used."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    panels = figure.subplots(2, len(sweeps), sharex="col", sharey="row", squeeze=False)
    for column, (name, levels) in enumerate(sweeps.items()):
        rates, used = panels[:, column]
        work = [str(level.work) for level in levels]
        rates.plot(work, [level.steps_per_s for level in levels], marker="o")
        bottom = np.zeros(len(levels))
        for role in ROLES:
            height = np.array([level.cores.get(role, 0.0) for level in levels])
            used.bar(work, height, bottom=bottom, width=0.6, label=role)
            bottom += height
        used.axhline(cores, color="grey", linestyle="--", linewidth=1)
        used.set_xlabel(name)
    panels[0, 0].set(ylabel="steps/s", ylim=(0, None))
    panels[1, 0].set_ylabel("cores used")
    figure.legend(*panels[1, 0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    main()
