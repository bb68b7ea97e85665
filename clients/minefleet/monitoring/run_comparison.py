"""Groups of runs that differ by their seed only, and what their results say of each other.

Medians and interquartile means with intervals of a stratified bootstrap, by rliable (Agarwal et al. 2021, "Deep
reinforcement learning at the edge of the statistical precipice").
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minefleet.core.errors import ConfigError
from minefleet.monitoring.jsonl_tail import read_rows
from minefleet.runs.run_yaml import LOCAL_KEYS, Run, flat_keys, read_run, run_directories, to_dict

SEED = "seed"
RESUME = "train_config.resume"
RESAMPLES = 2000
FEWEST = 3
"""Runs of a group, below which an interval would say nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupResult:
    """The results of runs of one configuration."""

    differs: Mapping[str, Any]
    """The keys in which the groups differ, with this one's values."""
    runs: Sequence[Path]
    env_steps: int
    """The place in the training at which they are compared."""
    median: float
    iqm: float
    """The mean of the middle half."""
    median_interval: tuple[float, float] | None
    """95 %; None of fewer than `FEWEST` runs. So is the other."""
    iqm_interval: tuple[float, float] | None


def compare(places: Sequence[Path], objective: str, env_steps: int = 0) -> list[GroupResult]:
    """Compares the runs in and among these directories.

    Args:
        places: Run directories, or folders of them.
        objective: A key of `metrics.jsonl`.
        env_steps: Where in the training, environment steps; 0 for the last step that all runs have reached. Runs that
            have not come so far are left out.

    Returns:
        One result per configuration, the highest median first.

    Raises:
        ConfigError: If there is no run, or none has such a key there.
        ImportError: If rliable is missing.
    """
    runs = [read_run(path) for path in sorted({path.resolve() for path in run_directories(places)})]
    if not runs:
        raise ConfigError(f"there is no run in {', '.join(map(str, places))}")
    curves = {run.directory: _curve(run, objective) for run in runs}
    runs = [run for run in runs if curves[run.directory]]
    if not runs:
        raise ConfigError(f"no run in {', '.join(map(str, places))} has {objective} in its metrics")
    at = env_steps or min(curves[run.directory][-1][0] for run in runs)
    groups: dict[str, list[tuple[Run, float]]] = defaultdict(list)
    configs: dict[str, dict[str, Any]] = {}
    for run in runs:
        reached = [value for steps, value in curves[run.directory] if steps <= at]
        if reached and curves[run.directory][-1][0] >= at:
            config = _keys(run)
            name = json.dumps(config, sort_keys=True, default=str)
            groups[name].append((run, reached[-1]))
            configs[name] = config
    if not groups:
        raise ConfigError(f"no run has {objective} at {at:,} environment steps")
    first, *others = configs.values()
    keys = dict.fromkeys(key for config in configs.values() for key in config)
    differing = [key for key in keys if any(config.get(key) != first.get(key) for config in others)]
    results = [
        _result({key: configs[name].get(key) for key in differing}, members, at) for name, members in groups.items()
    ]
    return sorted(results, key=lambda result: result.median, reverse=True)


def value_of(row: Mapping[str, Any], objective: str) -> float | None:
    """The objective in a row of metrics; keys of nested mappings are joined by dots."""
    value: Any = row
    for part in objective.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def last_value(metrics: Path, objective: str) -> float | None:
    """The objective in the last row that has it; None where none has."""
    values = [value_of(row, objective) for row in read_rows(metrics)]
    return next((value for value in reversed(values) if value is not None), None)


def _curve(run: Run, objective: str) -> list[tuple[int, float]]:
    rows = ((row["env_steps"], value_of(row, objective)) for row in read_rows(run.metrics))
    return [(steps, value) for steps, value in rows if value is not None]


def _keys(run: Run) -> dict[str, Any]:
    """The keys that make a configuration what it is."""
    flat = flat_keys(to_dict(run.config))
    return {
        key: value for key, value in flat.items() if key not in (SEED, RESUME) and key.split(".")[0] not in LOCAL_KEYS
    }


def _result(differs: Mapping[str, Any], members: Sequence[tuple[Run, float]], env_steps: int) -> GroupResult:
    from rliable import library, metrics

    scores = np.array([[value] for _, value in members])
    point = {"median": float(np.median(scores)), "iqm": float(metrics.aggregate_iqm(scores))}
    intervals: dict[str, tuple[float, float] | None] = dict.fromkeys(point)
    if len(members) >= FEWEST:
        np.random.seed(0)
        _, found = library.get_interval_estimates(
            {"": scores}, lambda values: np.array([np.median(values), metrics.aggregate_iqm(values)]), reps=RESAMPLES
        )
        low, high = found[""].tolist()
        intervals = {name: (low[number], high[number]) for number, name in enumerate(point)}
    return GroupResult(
        differs=differs,
        runs=[run.directory for run, _ in members],
        env_steps=env_steps,
        median=point["median"],
        iqm=point["iqm"],
        median_interval=intervals["median"],
        iqm_interval=intervals["iqm"],
    )
