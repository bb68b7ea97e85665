"""Draws a run's return over its environment steps.

`python -m minefleet.monitoring.plot RUN_DIR` writes `curve.png` there.
"""

import os
import sys
from pathlib import Path
from typing import Any

from minefleet.core.parent_death import die_with_launcher
from minefleet.monitoring.journal import read_whole_journal
from minefleet.monitoring.jsonl_tail import read_rows
from minefleet.monitoring.learner_requests_in_journal import ROLLBACK
from minefleet.monitoring.live_settings_by_iteration import set_lines
from minefleet.runs.run_yaml import Run, read_run

CURVE_FILE = "curve.png"
MAX_POINTS = 2000


def draw(run: Run) -> Path | None:
    """Draws the curve, whole; returns its path, or None when no episode has ended yet."""
    figure = make_figure(run, read_rows(run.metrics))
    if figure is None:
        return None
    place, aside = run.directory / CURVE_FILE, run.directory / f".{CURVE_FILE}.{os.getpid()}"
    figure.savefig(aside, format="png", dpi=130)
    aside.replace(place)
    return place


def make_figure(run: Run, rows: list[dict[str, Any]]) -> Any:
    """The figure of a run's rows, or None when no episode has ended yet."""
    points = [(row["env_steps"], row["episode_return_mean"]) for row in rows if row["episode_return_mean"] is not None]
    if not points:
        return None

    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    window = run.config.rollout_config.episode_statistics_config.window
    label = f"training, mean of the last {window} episode{'s' * (window > 1)}"
    shown = points[:: len(points) // MAX_POINTS + 1]
    axes.plot(*zip(*shown, strict=True), color="#2a6f97", linewidth=1.8, label=label)
    if evaluations := evaluations_in(rows):
        axes.plot(*zip(*evaluations, strict=True), color="#d1495b", marker="o", markersize=3, label="evaluation")
    lines = read_whole_journal(run.directory)
    rollbacks = [line for line in lines if line.get("event") == ROLLBACK]
    for name, style, marked in (("keys were changed", ":", set_lines(lines)), ("rolled back", "--", rollbacks)):
        places = [line.get("env_steps") for line in marked]
        for number, steps in enumerate(steps for steps in places if isinstance(steps, int)):
            axes.axvline(steps, color="#888888", linewidth=0.8, linestyle=style, label="" if number else name)
    axes.set(title=run.directory.name, xlabel="environment steps", ylabel="return")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best", fontsize="small")
    return figure


def evaluations_in(rows: list[dict[str, Any]]) -> list[tuple[int, float]]:
    """Each evaluation's environment steps and mean return: rows repeat the newest one, and add late episodes to it."""
    found: dict[int, tuple[int, float]] = {}
    for row in rows:
        if row.get("eval_return_mean") is not None:
            version = row["eval_policy_version"]
            found[version] = (found.get(version, (row["env_steps"],))[0], row["eval_return_mean"])
    return list(found.values())


if __name__ == "__main__":
    die_with_launcher()
    os.environ["MPLBACKEND"] = "Agg"  # Jupyter names one that is not found elsewhere.
    draw(read_run(Path(sys.argv[1])))
