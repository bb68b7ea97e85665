"""The end of a run: as numbers that a sweep reads, and as text for people."""

import json
import shlex
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from minefleet.cli.output.readable_text import duration, from_here, program
from minefleet.config import FleetConfig
from minefleet.launch.role_supervisor import LaunchEnd
from minefleet.launch.run_directory_setup import RESULT_FILE
from minefleet.monitoring.journal import read_whole_journal
from minefleet.monitoring.journaled_pauses import pause_reason
from minefleet.monitoring.jsonl_tail import read_rows
from minefleet.monitoring.live_settings_by_iteration import config_to_come
from minefleet.monitoring.plot import CURVE_FILE
from minefleet.runs.checkpoint_files import newest
from minefleet.runs.run_yaml import Run

SUMMARY_KEYS = ("episode_return_mean", "env_steps", "trained_steps", "skipped_steps")
BOUNDS = {"env_steps": "stop.env_steps={}", "num_iterations": "train_config.num_iterations={}"}
"""Bounds that a longer run must move, as key=value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The end of a launch."""

    ending: LaunchEnd
    wall_s: float
    reached: str = ""
    """The bound that the run had reached before."""


def bounds(config: FleetConfig) -> dict[str, int]:
    """The values of those keys."""
    return {"env_steps": config.stop.env_steps, "num_iterations": config.train_config.num_iterations}


def summarise(run: Run, outcome: Outcome) -> dict[str, Any]:
    """The numbers that a sweep reads, from the learner's last message or, without one, its last metrics."""
    result = run.directory / RESULT_FILE
    last: dict[str, Any] = json.loads(result.read_text()) if result.exists() else (read_rows(run.metrics) or [{}])[-1]
    checkpoint, failed = newest(run.checkpoints), outcome.ending.stopped_by == "failure"
    is_paused = outcome.ending.stopped_by == "learner" and bool(pause_of(run))
    return {
        "run_dir": str(run.directory),
        **{name: last.get(name) for name in SUMMARY_KEYS},
        "wall_s": round(outcome.wall_s, 1),
        "checkpoint": str(checkpoint) if checkpoint is not None else None,
        "stopped_by": "failure"
        if failed
        else outcome.reached or last.get("stopped_by", "pause" if is_paused else "signal"),
    }


def describe_end(run: Run, summary: dict[str, Any]) -> str:
    """The same for people: how far the run came, where its files are, and the commands to try next."""
    rows, directory, stopped_by = read_rows(run.metrics), from_here(run.directory), summary["stopped_by"]
    checkpoint, iteration = newest(run.checkpoints), rows[-1]["iteration"] if rows else 0
    env_steps, took = summary["env_steps"] or 0, duration(summary["wall_s"])
    lines = [
        f"trained       {iteration:,} iterations, {env_steps:,} env steps; this launch took {took}",
        f"stopped by    {stopped_by}",
    ]
    if returns := [
        (row["episode_return_mean"], row["iteration"]) for row in rows if row["episode_return_mean"] is not None
    ]:
        (best, at), (last, _) = max(returns, key=itemgetter(0)), returns[-1]
        lines.append(f"return        {last:.2f} at the end, {best:.2f} at best (iteration {at:,})")
    if rows and (failures := rows[-1].get("episode_failures")):
        lines.append(f"failures      {failures:,} episodes; `{program()} deaths {directory}` says why")
    files = {"checkpoint": checkpoint, "curve": run.directory / CURVE_FILE, "metrics": run.metrics, "logs": run.logs}
    lines += [f"{name:13} {from_here(path)}" for name, path in files.items() if path is not None and path.exists()]
    further = [BOUNDS[stopped_by].format(2 * bounds(config_to_come(run))[stopped_by])] if stopped_by in BOUNDS else []
    further += ["stop.episode_return=null"] if stopped_by == "episode_return" else []
    commands = [["eval", str(directory)]] if checkpoint is not None else []
    if pause := pause_of(run):
        lines.append(f"paused        {pause}")
        commands.append(["rollback", str(directory)])
    commands.append(["train", "--resume", str(directory), *further])
    return "\n".join(["", *lines, "", "Try next:", *(f"    {program()} {shlex.join(words)}" for words in commands)])


def pause_of(run: Run) -> str:
    """The reason why training is paused; "" where it is not."""
    reason = pause_reason(read_whole_journal(run.directory))
    return f"the policy has collapsed: {reason}" if reason else ""
