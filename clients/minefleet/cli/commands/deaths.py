"""`minefleet deaths`: groups the deaths of a run's environments, and shows one."""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import median

from minefleet.cli.output.readable_text import from_here, size
from minefleet.monitoring.env_death_groups import Death, cause_of, read_deaths
from minefleet.runs.default_run_directory import newest_run
from minefleet.runs.run_yaml import read_run


def run(arguments: argparse.Namespace) -> int:
    """Prints the groups; or the one that is named, or that of the death that is, and the last death in it."""
    directory, name = read_run(arguments.run_dir or newest_run()).directory, arguments.which
    deaths = [one for one in read_deaths(directory) if one["group"].startswith(name) or one["name"].startswith(name)]
    groups: dict[str, list[Death]] = {}
    for death in deaths:
        groups.setdefault(death["group"], []).append(death)
    if arguments.json:
        print(json.dumps(deaths))
    elif not deaths:
        print(f"no death of an environment{f' called {name}' * bool(name)} is kept in {directory}")
    else:
        for group in sorted(groups, key=lambda group: -len(groups[group])):
            print(_group(group, groups[group]))
        print(_death(deaths[-1]) if name else f"minefleet deaths {directory} NAME shows the last death of a group")
    return 0


def _group(name: str, deaths: Sequence[Death]) -> str:
    count = sum({death["actor"]: death["count"] for death in deaths}.values())
    steps, sizes = [one["steps"] for one in deaths], [one["rss_bytes"][-1] for one in deaths if one["rss_bytes"]]
    memory = f"{size(min(sizes))} to {size(max(sizes))}" if sizes else "unknown"
    tasks = ", ".join(
        f"{task or 'no task'} {times}" for task, times in Counter(one["task"] for one in deaths).most_common(5)
    )
    return (
        f"{name}: {count} times, {_time(min(one['first_s'] for one in deaths))} to {_time(deaths[-1]['time_s'])}\n"
        f"  most likely {cause_of(name, deaths)}\n  {min(steps)} to {max(steps)} steps after the reset, the median "
        f"{median(steps):g}; memory {memory}; {tasks}\n  {len(deaths)} kept, the last {deaths[-1]['name']}"
    )


def _death(death: Death) -> str:
    place = from_here(Path(death["place"]))
    lost = death["cannot_repeat"] and f"cannot be repeated: {death['cannot_repeat']}"
    return (
        f"\n{death['name']}: slot {death['slot']}, seed {death['seed']}, {death['steps']} steps after the reset\nof "
        f"episode {death['episode']} of its environment, task {death['task'] or 'none'}\n{death['text'].rstrip()}\n\n"
        f"memory  {', '.join(map(size, death['rss_bytes'])) or 'unknown'}\nframes  {place}\n"
        f"again   {lost or f'minefleet env --replay {place}'}\nlog\n" + "\n".join(death["log"])
    )


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%b %d %H:%M:%S}"
