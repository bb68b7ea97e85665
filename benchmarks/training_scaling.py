"""Whole training as work grows: steps per second by environments and by actors, and what is used up first.

    python benchmarks/training_scaling.py [--seconds 30] [--cores 2] [--picture docs/images/training_scaling.png]

    environments  1 to 32 of `pixels` in `benchmarks/training.py`, of one actor
    actors        1, 2 and 4 with 16 environments each, on one replay

Beside each rate stand the cores that each role used, how busy each core was, whoever used it, and how much of its time
the learner waited for steps. What is used up is named: all cores; one core, and who used most; the learner's time; or
nothing, where steps wait for each other.

A model (`harness/scaling_model.py`) takes an actor's costs from the fewest and the most environments, and all others
from the median of the first sweep. Each measured rate stands beside its prediction. A last table predicts larger
machines: with this learner, and with one that uses a share of its processor time, as with a GPU, whose share nobody
has measured.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median

import numpy as np

from harness.acting_envs import make_bank
from harness.report import aligned, line
from harness.scaling_model import Costs, fit_actor, predict
from harness.whole_cases import CASES, CORES, share_cores
from harness.whole_ours import train

CASE = "pixels"
USED_UP = 0.95
"""Share of a core from which on it is."""
SLOTS = "rollout_config.worker_config.num_envs"
PER_PROCESS = "rollout_config.worker_config.envs_per_process"
WORKERS = "rollout_config.num_rollout_workers"
ROLES = ("actor", "environments", "replay", "parameters", "learner", "launcher")
LARGER = ((1, 4), (2, 4), (4, 8), (8, 16), (16, 32))
"""Actors and cores of machines that are predicted."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """The results of one amount of work."""

    envs: int
    """Of each actor."""
    actors: int
    steps_per_s: float
    cores: Mapping[str, float]
    """That each role used."""
    busy: Sequence[float]
    """Share of the time of each core, whoever used it."""
    learner_waits: float
    """Share of the learner's time."""

    def us_per_step(self, *roles: str) -> float:
        """Microseconds of processor time that these roles use for a step."""
        return sum(self.cores.get(role, 0.0) for role in roles) / self.steps_per_s * 1e6

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
    parser.add_argument("--learner-share", type=float, default=0.1, help="of the predicted cheaper learner")
    parser.add_argument("--picture", type=Path, help="file that the sweeps are drawn to")
    arguments = parser.parse_args()
    if len(set(arguments.envs)) < 2:
        parser.error("--envs needs two numbers: the model is fitted to the fewest and the most")
    cores = len(share_cores(arguments.cores))
    make_bank()
    sweeps: Sweeps = {"environments": [], "actors": []}
    for envs in arguments.envs:
        sweeps["environments"].append(measure(envs, 1, arguments))
    for actors in arguments.actors:
        sweeps["actors"].append(measure(CASES[CASE].envs, actors, arguments))
    costs = costs_of(sweeps["environments"])
    for name, levels in sweeps.items():
        print(aligned(rows_of(name, levels, costs, cores)))
    print("us of a core: " + ", ".join(f"{name} {us:.0f}" for name, us in asdict(costs).items()))
    print(aligned(predictions(costs, arguments.learner_share)))
    if arguments.picture is not None:
        draw(sweeps, cores, arguments.picture)
    for name, levels in sweeps.items():
        for level in levels:
            print(line("training_scaling", f"{name}-{work_of(name, level)}", "steps/s", level.steps_per_s))


def measure(envs: int, actors: int, arguments: argparse.Namespace) -> Level:
    """Trains with so much work."""
    seconds = arguments.warm_up + arguments.seconds
    overrides = [f"{SLOTS}={envs}", f"{PER_PROCESS}={envs}", f"{WORKERS}={actors}"]
    trace = train(CASE, [*overrides, *arguments.set], seed=0, seconds=seconds)
    steady = trace.steady(arguments.warm_up, arguments.seconds)
    level = Level(
        envs=envs,
        actors=actors,
        steps_per_s=trace.rate(arguments.warm_up, arguments.seconds),
        cores=trace.watch.cores(arguments.seconds),
        busy=trace.watch.busy(arguments.seconds),
        learner_waits=mean(row.waited for row in steady),
    )
    print(f"{' '.join(overrides)}: {level.steps_per_s:.0f} steps/s", flush=True)
    return level


def costs_of(levels: Sequence[Level]) -> Costs:
    """The model's costs."""

    def typical(*roles: str) -> float:
        return median(level.us_per_step(*roles) for level in levels)

    few, many = (choose(levels, key=lambda level: level.envs) for choose in (min, max))
    decision, step = fit_actor((few.envs, few.us_per_step("actor")), (many.envs, many.us_per_step("actor")))
    return Costs(
        decision=decision,
        step=step,
        environments=typical("environments"),
        learner=typical("learner"),
        replay=typical("replay"),
        rest=typical("parameters", "launcher"),
    )


def rows_of(name: str, levels: Sequence[Level], costs: Costs, available: int) -> list[list[str]]:
    """A sweep as a table."""
    roles = (f"{role}, cores" for role in ROLES)
    rows = [[name, "steps/s", "predicted", "limited by", *roles, "cores busy", "learner waits", "used up"]]
    for level in levels:
        predicted, limit = predict(costs, envs=level.envs, actors=level.actors, cores=available)
        used = (f"{level.cores.get(role, 0.0):.2f}" for role in ROLES)
        busy = " ".join(f"{share:.0%}" for share in level.busy)
        begin = [str(work_of(name, level)), f"{level.steps_per_s:.0f}", f"{predicted:.0f}", limit]
        rows.append([*begin, *used, busy, f"{level.learner_waits:.0%}", level.used_up])
    return rows


def predictions(costs: Costs, share: float) -> list[list[str]]:
    """Larger machines as a table, with this learner and a cheaper one."""
    envs = CASES[CASE].envs
    cheaper = replace(costs, learner=costs.learner * share)
    rows = [["cores", f"actors of {envs}", "steps/s", "limited by", "steps/s, cheaper learner", "limited by then"]]
    for actors, cores in LARGER:
        row = [str(cores), str(actors)]
        for each in (costs, cheaper):
            rate, limit = predict(each, envs=envs, actors=actors, cores=cores)
            row += [f"{rate:.0f}", limit]
        rows.append(row)
    return rows


def work_of(name: str, level: Level) -> int:
    """The amount that a sweep varies."""
    return level.actors if name == "actors" else level.envs


def draw(sweeps: Sweeps, cores: int, picture: Path) -> None:
    """Draws a column per sweep: steps per second, and below it the cores that each role used."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    panels = figure.subplots(2, len(sweeps), sharex="col", sharey="row", squeeze=False)
    for column, (name, levels) in enumerate(sweeps.items()):
        rates, used = panels[:, column]
        work = [str(work_of(name, level)) for level in levels]
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
