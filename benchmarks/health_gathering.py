"""VizDoom's Health Gathering Supreme: the preset `vizdoom-health` beside Sample Factory, at equal steps.

    python benchmarks/health_gathering.py [--seeds 1 2 3] [--side ours sample_factory] [--runs DIR]

A million steps of four ticks each, by runs one after the other. The return is the mean of the last 100 training
episodes, the time is from the first iteration to the last. Runs that DIR has already are not made again; ours go on
where they were broken off. Sample Factory has the settings of its own example (`peers/sample_factory_health.py`), ours
those of the preset. Its example walks backwards, too, and draws neither particles nor decals.
"""

import argparse
import json
import subprocess
from itertools import product
from pathlib import Path
from statistics import median

from harness import long_runs
from harness.fragments import CACHE
from harness.peers import PEERS, install
from harness.report import aligned, line
from harness.whole_cases import share_cores

STEPS = 1_000_000
SHOWN = (100_000, 200_000, 300_000, 400_000, 600_000, 800_000, STEPS)
"""Steps at which the table shows the return."""
OURS, SAMPLE_FACTORY = SIDES = ("ours", "sample_factory")
Rows = list[tuple[float, int, float]]
"""Seconds, steps trained on, and the return, by iteration."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--side", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--runs", type=Path, default=CACHE / "health-runs", help="folder of the runs, which stay")
    arguments = parser.parse_args()
    share_cores()
    table = [["side, seed", "steps/s", *(f"{steps:,}" for steps in SHOWN)]]
    ends: dict[str, list[float]] = {side: [] for side in SIDES}
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    for seed, side in product(arguments.seeds, arguments.side):
        rows = train(side, seed, arguments.runs.resolve() / f"{side}-{seed}")
        ends[side].append(at(rows, STEPS))
        rates[side].append((rows[-1][1] - rows[0][1]) / (rows[-1][0] - rows[0][0]))
        shown = [f"{at(rows, steps):.1f}" for steps in SHOWN]
        table.append([f"{side}, {seed}", f"{rates[side][-1]:.0f}", *shown])
        print(aligned([table[0], table[-1]]), flush=True)
    print(aligned(table))
    for case, unit, figures in (("return", "medkits and life", ends), ("rate", "steps/s", rates)):
        if ours := figures[OURS]:
            theirs = figures[SAMPLE_FACTORY]
            print(line("health_gathering", case, unit, median(ours), peer=median(theirs) if theirs else None))


def train(side: str, seed: int, directory: Path) -> Rows:
    """The iterations of a run, which is made unless it is there and over."""
    if side == SAMPLE_FACTORY:
        if not (directory / "rows.json").exists():
            directory.mkdir(parents=True, exist_ok=True)
            python = str(install("sample_factory", constrained=False))
            command = [python, str(PEERS / "sample_factory_health.py"), str(seed), str(STEPS), str(directory)]
            subprocess.run(command, check=True)
        rows = json.loads((directory / "rows.json").read_text())
    else:
        python = f"env.python={install('vizdoom', constrained=False)}"
        # Another interpreter cannot import minefleet, and another generator drops the preset's wrappers.
        world = [f"env.generator={PEERS / 'worlds.py'}:health_gathering", "env.wrappers.resize=[48,64]"]
        long_runs.train("vizdoom-health", [f"seed={seed}", f"stop.env_steps={STEPS}", python, *world], directory)
        metrics = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
        rows = [(row["wall_s"], row["trained_steps"], row["episode_return_mean"]) for row in metrics]
    return [(seconds, steps, mean) for seconds, steps, mean in rows if mean is not None]


def at(rows: Rows, steps: int) -> float:
    """The return after so many steps."""
    return next((mean for _, trained, mean in rows if trained >= steps), rows[-1][2])


if __name__ == "__main__":
    main()
