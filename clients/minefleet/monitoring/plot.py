"""Draws a run's return over its environment steps.

`python -m minefleet.monitoring.plot RUN_DIR` writes `curve.png` there.
"""

import os
import sys
from pathlib import Path
from typing import Any

from minefleet.core.parent_death import die_with_launcher
from minefleet.monitoring.jsonl_tail import read_rows
from minefleet.runs.run import METRICS_FILE

CURVE_FILE = "curve.png"
MAX_POINTS = 2000


def draw(directory: Path) -> Path | None:
    """Draws the curve, whole; returns its path, or None when no episode has ended yet."""
    rows = read_rows(directory / METRICS_FILE)
    points = [(row["env_steps"], row["episode_return_mean"]) for row in rows if row["episode_return_mean"] is not None]
    if not points:
        return None
    evaluations = [
        (row["env_steps"], row["eval_return_mean"]) for row in rows if row.get("eval_return_mean") is not None
    ]
    place, aside = directory / CURVE_FILE, directory / f".{CURVE_FILE}.{os.getpid()}"
    _figure(directory.name, points[:: len(points) // MAX_POINTS + 1], evaluations).savefig(aside, format="png", dpi=130)
    aside.replace(place)
    return place


def _figure(title: str, points: list[tuple[float, float]], evaluations: list[tuple[float, float]]) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(
        *zip(*points, strict=True), color="#2a6f97", linewidth=1.8, label="training, mean of the last 100 episodes"
    )
    if evaluations:
        axes.plot(*zip(*evaluations, strict=True), color="#d1495b", marker="o", markersize=3, label="evaluation")
    axes.set(title=title, xlabel="environment steps", ylabel="return")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best", fontsize="small")
    return figure


if __name__ == "__main__":
    die_with_launcher()
    os.environ["MPLBACKEND"] = "Agg"  # Jupyter names one that is not found elsewhere.
    draw(Path(sys.argv[1]))
