"""Compares learning with stable-baselines3 on seven environments, with the same hyper-parameters.

    python benchmarks/learning.py [--case LunarLander …] [--side ours …] [--seeds N] [--together 1]
    python benchmarks/learning.py --report [--picture FILE]

    ours           a fleet of real roles, acting one version behind (`max_staleness` 1)
    ours, clip     the same with `off_policy: clip`, where the kinds of task have `decoupled`
    ours, in turn  the same at staleness 0, in LunarLander and Recall
    defaults       `env: {id: …}`, and nothing else; where memory is needed `policy: {gru_size: 64}`
    sb3            stable-baselines3's PPO, where there is memory RecurrentPPO of sb3-contrib
    random         actions drawn uniformly

Each seed of each side is a job, and a row of `results/learning.jsonl`; those that are there are not run again, so that
the benchmark can be stopped at any time. All of them take some six hours on two cores. The return is the mean of the
last 100 training episodes, the area its mean over environment steps. A score is (return - random) / (sb3 - random),
with the means of all seeds for random and sb3.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import yaml

from harness.curves import Points, draw_curves
from harness.learning_cases import CASES, Case, configuration
from harness.peers import PEERS, install
from harness.report import aligned, line

RESULTS = Path(__file__).parent / "results" / "learning.jsonl"
OURS, CLIP, IN_TURN, DEFAULTS, SB3, RANDOM = SIDES = (
    "ours",
    "ours, clip",
    "ours, in turn",
    "defaults",
    "sb3",
    "random",
)
SCORED = (OURS, CLIP, IN_TURN, DEFAULTS)
KEPT_POINTS = 100
"""Of a curve in a row."""
Row = dict[str, Any]
Job = tuple[str, str, int]
"""Case, side and seed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--side", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--seeds", type=int, default=0, help="of each case (default: three, LunarLander five)")
    parser.add_argument("--together", type=int, default=1, help="jobs at a time (default: 1)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--picture", type=Path, help="file that the curves are drawn to")
    arguments = parser.parse_args()
    python = install("sb3")
    if not arguments.report:
        arguments.results.parent.mkdir(exist_ok=True)
        done = {(row["case"], row["side"], row["seed"]) for row in read(arguments.results)}
        wanted = [job for job in jobs(arguments.case, arguments.side, arguments.seeds) if job not in done]
        with ThreadPoolExecutor(arguments.together) as threads, arguments.results.open("a") as file:
            for row in threads.map(lambda job: run(python, *job), wanted):
                print(f"{row['case']}, {row['side']}, seed {row['seed']}: {row['final']:.1f}", flush=True)
                file.write(json.dumps(row) + "\n")
                file.flush()
    rows = read(arguments.results)
    report(python, rows)
    if arguments.picture is not None:
        draw(rows, arguments.picture)


def jobs(names: Sequence[str], sides: Sequence[str], seeds: int) -> Iterator[Job]:
    """All that is to be run, seed by seed."""
    most = max(seeds or CASES[name].seeds for name in names)
    for seed, name, side in product(range(1, most + 1), names, sides):
        case = CASES[name]
        if seed <= (seeds or case.seeds) and (side != IN_TURN or case.also_in_turn):
            yield name, side, seed


def run(python: Path, name: str, side: str, seed: int) -> Row:
    """Runs a job; returns its row."""
    case = CASES[name]
    points = run_peer(python, case, seed, side) if side in (SB3, RANDOM) else run_ours(python, case, seed, side)
    kept = points[:: max(1, len(points) // KEPT_POINTS)]
    return {
        "case": name,
        "side": side,
        "seed": seed,
        "area": area(points, case.env_steps),
        "final": points[-1][1],
        "points": [[steps, round(reached, 3)] for steps, reached in kept],
    }


def run_ours(python: Path, case: Case, seed: int, side: str) -> Points:
    """The points of one run of ours."""
    config = case.least if side == DEFAULTS else configuration(case)
    config |= {"env": {"generator": f"{PEERS / 'worlds.py'}:{case.world}", "python": str(python)}}
    overrides = [f"seed={seed}", f"stop.env_steps={case.env_steps}"]
    if side == IN_TURN:
        overrides.append("rollout_config.replay_buffer_config.max_staleness=0")
    if side == CLIP:
        overrides.append("train_config.off_policy=clip")
    with tempfile.TemporaryDirectory() as scratch:
        directory, file = Path(scratch) / "run", Path(scratch) / "case.yaml"
        file.write_text(yaml.safe_dump(config))
        command = [sys.executable, "-m", "minefleet", "train", str(file), *overrides, "--run-dir", str(directory)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed: {done.stderr}")
        rows = [json.loads(text) for text in (directory / "metrics.jsonl").read_text().splitlines()]
    return [(row["env_steps"], row["episode_return_mean"]) for row in rows if row["episode_return_mean"] is not None]


def run_peer(python: Path, case: Case, seed: int, side: str) -> Points:
    """The points of one run of the peer, or of random actions."""
    job = {
        "world": case.world,
        "seed": seed,
        "env_steps": case.env_steps,
        "num_envs": case.num_envs,
        "normalize": case.normalize,
        "recurrent": case.recurrent,
        "ppo": None if side == RANDOM else case.theirs,
    }
    return [(steps, reached) for steps, reached in ask(python, "sb3_learning.py", job)]


def ask(python: Path, script: str, question: Any) -> Any:
    """Runs a script in the peer's interpreter, and returns its answer."""
    done = subprocess.run(
        [python, str(PEERS / script), json.dumps(question)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{script} failed: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def area(points: Points, env_steps: int) -> float:
    """Mean of a curve over environment steps, level before its first point and after its last."""
    at = np.linspace(0, env_steps, 1000)
    return float(np.interp(at, *np.array(points).T).mean())


def read(results: Path) -> list[Row]:
    """All rows so far."""
    return [json.loads(text) for text in results.read_text().splitlines()] if results.exists() else []


def of(rows: Sequence[Row], case: str, side: str, what: str) -> list[float]:
    """A figure of each seed."""
    chosen = sorted((row["seed"], row[what]) for row in rows if (row["case"], row["side"]) == (case, side))
    return [figure for _, figure in chosen]


def scores(rows: Sequence[Row], case: str, side: str, what: str) -> list[float]:
    """The score of each seed; none while there is nothing to compare with."""
    low, high = (of(rows, case, other, what) for other in (RANDOM, SB3))
    if not low or not high:
        return []
    return [(one - mean(low)) / (mean(high) - mean(low)) for one in of(rows, case, side, what)]


def report(python: Path, rows: Sequence[Row]) -> None:
    """Prints a table of final returns and scores, and the pooled score of each side."""
    cells = [["case", *SIDES, *(f"{side}: area, final" for side in SCORED)]]
    for case in CASES:
        finals = [of(rows, case, side, "final") for side in SIDES]
        pairs = [[scores(rows, case, side, what) for what in ("area", "final")] for side in SCORED]
        cells.append(
            [
                case,
                *(f"{mean(final):.1f}" if final else "" for final in finals),
                *(", ".join(f"{mean(one):.2f}" for one in pair if one) for pair in pairs),
            ]
        )
    print(aligned(cells))
    pooled = {side: table for side in SCORED if (table := rectangle(rows, side))}
    intervals = ask(python, "interquartile.py", pooled) if pooled else {}
    for side, (middle, lower, upper) in intervals.items():
        print(f"{side}: interquartile mean of the areas' scores {middle:.2f}, 95 % interval {lower:.2f} to {upper:.2f}")
    if OURS in intervals:
        print(line("learning", "pooled-area", "score", intervals[OURS][0], peer=1.0))


def rectangle(rows: Sequence[Row], side: str) -> list[list[float]]:
    """Scores by seed and case, of as many seeds as all cases of this side have."""
    columns = [column for case in CASES if (column := scores(rows, case, side, "area"))]
    return [list(row) for row in zip(*columns, strict=False)]


def draw(rows: Sequence[Row], picture: Path) -> None:
    """Draws the curves of all cases."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6), layout="constrained")
    panels = figure.subplots(2, 4).flat
    for panel, case in zip(panels, CASES, strict=False):
        for side in (OURS, SB3, DEFAULTS):
            draw_curves(panel, side, of(rows, case, side, "points"))  # type: ignore[arg-type]  # A figure is a curve here.
        panel.set(title=case, xlabel="thousand steps")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="lower right")
    figure.axes[-1].set_axis_off()
    figure.savefig(picture)


if __name__ == "__main__":
    main()
