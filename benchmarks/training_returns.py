"""Compares the returns of both sides of `benchmarks/training.py`, ours and Sample Factory, after the same steps.

    python benchmarks/training_returns.py [--case vizdoom] [--rounds 3] [--steps 400000] [--picture FILE]

Each round trains both in turn with a seed of its own, the other one first each time. Prints each curve and the medians:
the mean return of the last 100 episodes when so many steps had been trained on. The figure is how far they end above
the first episodes, those of both sides together. The learning rate is ten times that of the other benchmark: with that,
150,000 steps taught neither side anything.
"""

import argparse
import math
from pathlib import Path
from statistics import median

from harness.curves import Points, draw_curves
from harness.report import aligned, line
from harness.tracing import Trace
from harness.whole_cases import share_cores
from harness.whole_ours import train
from harness.whole_sides import train_peer

OURS, PEER = SIDES = ("ours", "sample-factory")
POINTS = 8
Runs = dict[str, list[Points]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=("vizdoom", "vector"), default="vizdoom")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400_000)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="keys of our configuration")
    parser.add_argument("--picture", type=Path, help="file that the curves are drawn to")
    arguments = parser.parse_args()
    share_cores()
    runs: Runs = {side: [] for side in SIDES}
    for seed in range(arguments.rounds):
        for side in SIDES if seed % 2 == 0 else reversed(SIDES):
            runs[side].append(points_of(run(side, seed, arguments)))
            curve = (f"{reached(runs[side][-1], mark):.2f}" for mark in marks_of(arguments.steps))
            print(f"seed {seed}, {side}:", *curve, flush=True)
    print(aligned(rows_of(runs, arguments.steps)))
    if arguments.picture is not None:
        draw(runs, arguments.picture)
    untrained = median(points[0][1] for side in SIDES for points in runs[side])
    ours, peer = (median(reached(points, arguments.steps) for points in runs[side]) - untrained for side in SIDES)
    print(line("training_returns", arguments.case, "return gained", ours, peer=peer))


def run(side: str, seed: int, arguments: argparse.Namespace) -> Trace:
    """Trains one side."""
    rate = arguments.learning_rate
    if side == PEER:
        options = [f"--learning_rate={rate}"]
        return train_peer(arguments.case, options, seed=seed, seconds=math.inf, steps=arguments.steps)
    overrides = [f"train_config.learning_rate={rate}", *arguments.set]
    return train(arguments.case, overrides, seed=seed, seconds=math.inf, steps=arguments.steps)


def points_of(trace: Trace) -> Points:
    """The learning curve, from where episodes have ended."""
    return [(row.steps, row.mean_return) for row in trace.rows if row.mean_return is not None]


def reached(points: Points, steps: float) -> float:
    """The return when so many steps had been trained on, or before the first episodes ended, theirs."""
    return [points[0], *(point for point in points if point[0] <= steps)][-1][1]


def marks_of(steps: int) -> list[int]:
    """After how many steps returns are shown."""
    return [steps * number // POINTS for number in range(1, POINTS + 1)]


def rows_of(runs: Runs, steps: int) -> list[list[str]]:
    """The curves as a table."""
    medians = {
        mark: [median(reached(points, mark) for points in runs[side]) for side in SIDES] for mark in marks_of(steps)
    }
    return [
        ["return", *SIDES],
        *([f"{mark:,} steps", *(f"{value:.3f}" for value in row)] for mark, row in medians.items()),
    ]


def draw(runs: Runs, picture: Path) -> None:
    """Draws a curve per side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.2), layout="constrained")
    panel = figure.subplots()
    for side in SIDES:
        draw_curves(panel, side, runs[side])
    panel.set(xlabel="thousand steps trained on", ylabel="return, mean of the last 100 episodes")
    panel.legend(frameon=False)
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    main()
