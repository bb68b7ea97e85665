"""Runs a tool on the stores of a run: `python -m minefleet_replay.tools TOOL --run-dir DIR`. Prints one JSON object.

Exit codes: 0 done, and what was looked at is sound; 1 faults or failed; 2 the command line or the run cannot work.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from minefleet.core.errors import EXIT_CONFIG, EXIT_FAILED, ConfigError, FleetError
from minefleet.runs.run_yaml import Run, Shard, read_run
from minefleet_replay.engine.latest_drops import why_dropped
from minefleet_replay.state.limits import Limits, limits_of
from minefleet_replay.storage.rocksdb_store import DATABASE
from minefleet_replay.tools.export_fragments import ExportRequest, export
from minefleet_replay.tools.fsck import fsck
from minefleet_replay.tools.offline_store import locked, looking
from minefleet_replay.tools.stats import stats

Tool = Callable[[Shard, Limits, argparse.Namespace], dict[str, Any]]


def main(argv: Sequence[str]) -> int:
    """Runs the tool that the command line names, and returns its exit code."""
    arguments = parse(argv)
    try:
        run = read_run(arguments.run_dir)
        report = {"run_dir": str(run.directory)} | _run(run, arguments)
    except FleetError as error:
        print(f"minefleet: {error}", file=sys.stderr)  # noqa: T201  # This module is a command.
        return EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_FAILED
    print(json.dumps(report))  # noqa: T201
    return _exit_code(report, arguments)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m minefleet_replay.tools", description="Looks into replay's stores.")
    parser.add_argument("tool", choices=(*TOOLS, "export"))
    parser.add_argument("--run-dir", type=Path, required=True, metavar="DIR")
    parser.add_argument("--place", metavar="NAME", help="which process of replay (default: all)")
    parser.add_argument("--stream", default="")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--out", type=Path, metavar="DIR", help="where an export goes")
    return parser.parse_args(argv)


def _run(run: Run, arguments: argparse.Namespace) -> dict[str, Any]:
    shards = [shard for shard in run.shards if arguments.place in (None, shard.name)]
    if arguments.tool == "export":
        return export(run, shards, arguments.out, ExportRequest(stream=arguments.stream, limit=arguments.limit))
    reports = []
    for shard in shards:
        with locked(shard.store):
            report = TOOLS[arguments.tool](shard, limits_of(run, shard.index), arguments)
        reports.append({"name": shard.name, "store": str(shard.store)} | report)
    return {"shards": reports}


def _stats(shard: Shard, limits: Limits, _: argparse.Namespace) -> dict[str, Any]:
    return {"online": False} | stats(shard.store, limits)


def _why_dropped(shard: Shard, limits: Limits, arguments: argparse.Namespace) -> dict[str, Any]:
    with looking(shard.store / DATABASE, limits.max_bytes) as store:
        departures = why_dropped(store, arguments.stream, arguments.limit)
    return {"online": False, "departures": [departure.to_dict() for departure in departures]}


def _fsck(shard: Shard, limits: Limits, _: argparse.Namespace) -> dict[str, Any]:
    return fsck(shard.store, limits)


def _exit_code(report: dict[str, Any], arguments: argparse.Namespace) -> int:
    has_faults = any(shard.get("faults") for shard in report.get("shards", ()))
    return EXIT_FAILED if arguments.tool == "fsck" and has_faults else 0


TOOLS: dict[str, Tool] = {"stats": _stats, "why-dropped": _why_dropped, "fsck": _fsck}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
