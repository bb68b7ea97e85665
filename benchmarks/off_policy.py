"""CartPole by an actor that is 0, 2, 4 or 8 versions behind: what each `off_policy` makes of it.

    python benchmarks/off_policy.py [--results DIR] [--methods clip …] [--seeds 5] [--env-steps 100000]
    python benchmarks/off_policy.py --results DIR --report FILE.png

One actor and one learner take turns in this process, with the fleet's inference, recorder, estimates and updates; the
actor's weights are those of exactly so many versions ago. The preset `cartpole` in all else. Each run's curve is a
file in the results directory; runs that are there already are not made again. `--report` makes no run: it prints the
table and draws the curves.
"""

import argparse
import json
import statistics
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.curves import draw_curves
from harness.playing import Player, schema_of_env, steps_of
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

STALENESS = (0, 2, 4, 8)
METHODS = ("clip", "decoupled", "vtrace")
Run = dict[str, Any]
WINDOW = 100
"""Episodes that a mean return is taken over."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("off_policy"))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--env-steps", type=int, default=100_000)
    parser.add_argument("--report", type=Path, help="draw the curves there, of the runs that are done")
    arguments = parser.parse_args()
    if arguments.report is None:
        arguments.results.mkdir(parents=True, exist_ok=True)
        for seed, staleness, method in product(range(1, arguments.seeds + 1), STALENESS, arguments.methods):
            run_once(place(arguments.results, method, staleness, seed), method, staleness, seed, arguments.env_steps)
    report(read_all(arguments.results), arguments.report)


def read_all(results: Path) -> list[Run]:
    """The runs that are done."""
    return [json.loads(file.read_text()) for file in sorted(results.glob("*-*-*.json"))]


def place(results: Path, method: str, staleness: int, seed: int) -> Path:
    """The path of a run's curve."""
    return results / f"{method}-{staleness}-{seed}.json"


def run_once(file: Path, method: str, staleness: int, seed: int, env_steps: int) -> None:
    """Makes a run, unless it is there."""
    if file.exists():
        return
    overrides = [f"seed={seed}", f"stop.env_steps={env_steps}", f"train_config.off_policy={method}"]
    points = list(curve(load("cartpole", overrides), staleness))
    result = {"method": method, "staleness": staleness, "seed": seed, "points": points}
    write_whole(file, json.dumps(result) + "\n")
    print(f"{file.stem}: area {area(points):.0f}, final {points[-1][1]:.0f}", flush=True)


def curve(config: FleetConfig, staleness: int) -> Iterator[tuple[int, float]]:
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
    with closing(Player(config.env, schema, inference, slots=slots, length=length, seed=config.seed)) as player:
        for iteration in count():
            if env_steps >= config.stop.env_steps:
                return
            player.swap(versions[0], max(0, iteration - staleness))
            named = player.play()
            env_steps += steps_of(named)
            updater.update(collate(named), rates(train, iteration, progress(config, iteration, env_steps)))
            versions.append(to_numpy(policy))
            if player.returns:
                yield env_steps, float(np.mean(player.returns[-WINDOW:]))


def area(points: list[tuple[int, float]]) -> float:
    """Mean of the curve over environment steps."""
    steps, returns = np.array(points).T
    return float(np.trapezoid(returns, steps) / (steps[-1] - steps[0]))


def report(runs: Sequence[Run], picture: Path | None) -> None:
    """Prints the table and a line per case, and draws the curves."""
    areas: dict[tuple[str, int], list[float]] = defaultdict(list)
    for run in runs:
        areas[run["method"], run["staleness"]].append(area(run["points"]))
    rows = [["staleness", *METHODS]]
    for staleness in STALENESS:
        rows.append([str(staleness), *(words(areas[method, staleness]) for method in METHODS)])
    print(aligned(rows))
    for method, staleness in product(METHODS, STALENESS):
        if done := areas[method, staleness]:
            print(line("off_policy", f"{method}-{staleness}", "return", statistics.median(done), limit=500.0))
    if picture is not None:
        draw(runs, picture)


def words(areas: Sequence[float]) -> str:
    """The median, and all of them."""
    return f"{statistics.median(areas):.0f} ({min(areas):.0f} to {max(areas):.0f})" if areas else "-"


def draw(runs: Sequence[Run], picture: Path) -> None:
    """Draws a panel per staleness: the median curve of each method, and the band from the lowest to the highest."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.2), layout="constrained")
    panels = figure.subplots(1, len(STALENESS), sharey=True)
    for panel, staleness in zip(panels, STALENESS, strict=True):
        for method in METHODS:
            mine = [run for run in runs if (run["method"], run["staleness"]) == (method, staleness)]
            draw_curves(panel, method, [run["points"] for run in mine])
        panel.set(title=f"staleness {staleness}", xlabel="thousand environment steps")
    panels[0].set_ylabel("return, mean of the last 100 episodes")
    panels[0].legend(frameon=False)
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    main()
