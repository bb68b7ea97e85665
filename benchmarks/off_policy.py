"""A task by an actor that is 0, 2, 4 or 8 versions behind, whose data is used once or more, by each `off_policy`.

    python benchmarks/off_policy.py [--preset cartpole] [--results DIR] [--methods clip …] [--staleness 0 2 4 8]
                                    [--reuse 1] [--seeds 1 2 3 4 5] [--env-steps 100000]
    python benchmarks/off_policy.py --results DIR --report FILE.png

One actor and one learner take turns in this process, with the fleet's inference, recorder, estimates and updates; the
actor's weights are those of exactly so many versions ago. An iteration takes fragments by fewest uses, then age, as
leases do, and the actor plays when too few are left. All else is the preset's. Each run's curve is a file in the
results directory; runs that are there already are not made again. `--report` makes no run: it prints the table and
draws the curves.
"""

import argparse
import json
import statistics
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import count, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from harness.curves import draw_curves
from harness.playing import Named, Player, schema_of_env, steps_of
from harness.report import aligned, line
from minefleet.config import FleetConfig
from minefleet.config.load import load
from minefleet.core.atomic_files import write_whole
from minefleet.policies import build
from minefleet.policies.weight_arrays import to_numpy
from minefleet_actor.inference.policy_runner import PolicyRunner
from minefleet_learner.build import build_optimizer
from minefleet_learner.data.batch import collate
from minefleet_learner.training.rng_state import seed_everything
from minefleet_learner.training.schedules import progress, rates
from minefleet_learner.training.updater import Updater

METHODS = ("clip", "decoupled", "vtrace")
Run = dict[str, Any]
WINDOW = 100
"""Episodes that a mean return is taken over."""


class Case(NamedTuple):
    """The settings of a curve."""

    preset: str
    method: str
    staleness: int
    """Versions that the actor is behind."""
    reuse: int
    """Iterations that train on each fragment."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="cartpole")
    parser.add_argument("--results", type=Path, default=Path("off_policy"))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 2, 4, 8])
    parser.add_argument("--reuse", type=int, nargs="+", default=[1])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--env-steps", type=int, default=100_000)
    parser.add_argument("--report", type=Path, help="draw the curves there, of the runs that are done")
    arguments = parser.parse_args()
    if arguments.report is None:
        arguments.results.mkdir(parents=True, exist_ok=True)
        cases = product(arguments.seeds, arguments.staleness, arguments.reuse, arguments.methods)
        for seed, staleness, reuse, method in cases:
            run_once(arguments.results, Case(arguments.preset, method, staleness, reuse), seed, arguments.env_steps)
    report(read_all(arguments.results), arguments.report)


def read_all(results: Path) -> list[Run]:
    """The runs that are done."""
    return [json.loads(file.read_text()) for file in sorted(results.glob("*.json"))]


def run_once(results: Path, case: Case, seed: int, env_steps: int) -> None:
    """Makes a run, unless it is there."""
    file = results / f"{'-'.join(map(str, case))}-{seed}.json"
    if file.exists():
        return
    overrides = [f"seed={seed}", f"stop.env_steps={env_steps}", f"train_config.off_policy={case.method}"]
    points = list(curve(load(case.preset, overrides), case.staleness, case.reuse))
    write_whole(file, json.dumps({"case": case, "seed": seed, "points": points}) + "\n")
    print(f"{file.stem}: area {area(points):.4g}, final {points[-1][1]:.4g}", flush=True)


def curve(config: FleetConfig, staleness: int, reuse: int) -> Iterator[tuple[int, float]]:
    """Trains, and yields environment steps and the mean return of the last episodes."""
    train, slots = config.train_config, config.rollout_config.worker_config.num_envs
    torch.set_num_threads(1)
    seed_everything(config.seed)
    schema = schema_of_env(config.env)
    policy, acting = build(config.policy, schema), build(config.policy, schema)
    updater = Updater(policy, build_optimizer(policy, train), train, None)
    inference = PolicyRunner(acting, schema, slots, device=torch.device("cpu"), seed=config.seed, greedy=False)
    length, env_steps = config.rollout_config.fragment_length, 0
    versions = deque([to_numpy(policy)], maxlen=staleness + 1)
    held: list[Named] = [[] for _ in range(reuse)]
    """The fragments, by how often they were used."""
    with closing(Player(config.env, schema, inference, slots=slots, length=length, seed=config.seed)) as player:
        for iteration in count():
            if env_steps >= config.stop.env_steps:
                return
            player.swap(versions[0], max(0, iteration - staleness))
            while sum(map(len, held)) < train.fragments_per_iteration:
                named = player.play()
                held[0] += named
                env_steps += steps_of(named)
            batch = collate(use(held, train.fragments_per_iteration))
            updater.update(batch, rates(train, iteration, progress(config, iteration, env_steps)))
            versions.append(to_numpy(policy))
            if player.returns:
                yield env_steps, float(np.mean(player.returns[-WINDOW:]))


def use(held: list[Named], fragments: int) -> Named:
    """Takes so many fragments, of those that were used least the oldest, and counts the use."""
    taken: list[Named] = []
    for same in held:
        taken.append(same[: fragments - sum(map(len, taken))])
        del same[: len(taken[-1])]
    for same, more in zip(held[1:], taken, strict=False):
        same.extend(more)
    return [one for some in taken for one in some]


def area(points: list[tuple[int, float]]) -> float:
    """Mean of the curve over environment steps."""
    steps, returns = np.array(points).T
    return float(np.trapezoid(returns, steps) / (steps[-1] - steps[0]))


def report(runs: Sequence[Run], picture: Path | None) -> None:
    """Prints a table per task, and a line per case with the actor that is never behind as its peer, and draws."""
    areas: dict[Case, list[float]] = defaultdict(list)
    for run in runs:
        areas[Case(*run["case"])].append(area(run["points"]))
    for preset in sorted({case.preset for case in areas}):
        rows = [[preset, *METHODS]]
        for staleness, reuse in sorted({case[2:] for case in areas if case.preset == preset}):
            cells = [words(areas.get(Case(preset, method, staleness, reuse), [])) for method in METHODS]
            rows.append([f"{staleness} behind, used {reuse} times", *cells])
        print(aligned(rows))
    for case, done in sorted(areas.items()):
        fresh = areas.get(case._replace(staleness=0, reuse=1))
        name = "-".join(map(str, case))
        peer = None if fresh is None else statistics.median(fresh)
        print(line("off_policy", name, "return", statistics.median(done), peer=peer))
    if picture is not None:
        draw(runs, picture)


def words(areas: Sequence[float]) -> str:
    """The median, and all of them."""
    return f"{statistics.median(areas):.4g} ({min(areas):.4g} to {max(areas):.4g})" if areas else "-"


def draw(runs: Sequence[Run], picture: Path) -> None:
    """Draws a panel per task and staleness: the median curve of each method, and the band from lowest to highest."""
    from matplotlib.figure import Figure

    once = [(Case(*run["case"]), run["points"]) for run in runs if Case(*run["case"]).reuse == 1]
    presets = sorted({case.preset for case, _ in once})
    ages = sorted({case.staleness for case, _ in once})
    figure = Figure(figsize=(12, 3.2 * len(presets)), layout="constrained")
    panels = figure.subplots(len(presets), len(ages), sharey="row", squeeze=False)
    for (row, preset), (column, staleness) in product(enumerate(presets), enumerate(ages)):
        panel = panels[row, column]
        for method in METHODS:
            draw_curves(panel, method, [points for case, points in once if case == (preset, method, staleness, 1)])
        panel.set(title=f"{preset}, {staleness} behind", xlabel="thousand environment steps")
    panels[0, 0].set_ylabel("return, mean of the last 100 episodes")
    panels[0, 0].legend(frameon=False)
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    main()
