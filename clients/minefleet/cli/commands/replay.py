"""`minefleet replay`: looks into replay. Asks it where it runs; else starts the tool that reads its store."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from minefleet.cli.output.replay_reports import BUCKETS, RENDER
from minefleet.cli.settings import newest_run
from minefleet.cli.start_tool import Report, start_tool
from minefleet.core.errors import ConfigError, DeadlineError, NotFoundError, UnavailableError
from minefleet.core.files import disk_bytes
from minefleet.launch.run_checks import stored_run
from minefleet.monitoring.stores import StoreLocation, places
from minefleet.rpc.credentials import OPERATOR, Credentials, read_credentials
from minefleet.rpc.replay_client import ReplayClient
from minefleet.runs.run import Run, read_run
from minefleet.v1 import status_service_pb2

MODULE = "minefleet_replay.tools"
ONLINE = ("stats", "why-dropped")
DEPARTURES = 100
"""Default number of departures that are shown."""


def run(arguments: argparse.Namespace) -> int:
    """Looks, prints what it found, and returns the tool's exit code."""
    target, directory = _paths(arguments)
    run_ = read_run(directory or newest_run())
    if arguments.action == "export":
        report, code = _export(run_, target, arguments)
    else:
        report, code = _inspect(run_, arguments)
    if arguments.json:
        print(json.dumps(report))
    else:
        Console(soft_wrap=True).print(RENDER[arguments.action](report))
    return code


def _paths(arguments: argparse.Namespace) -> tuple[Path | None, Path | None]:
    """The directory of an export, and the run's."""
    paths: list[Path | None] = [*arguments.paths]
    target = None
    if arguments.action == "export":
        if not paths:
            raise ConfigError("give export a directory to write into")
        target = paths.pop(0)
    if len(paths) > 1:
        raise ConfigError(f"give one RUN_DIR, got {' and '.join(map(str, paths))}")
    return target, paths[0] if paths else None


def _inspect(run_: Run, arguments: argparse.Namespace) -> tuple[Report, int]:
    """Looks at each process of replay."""
    shards, codes, unknown = [], [], list[NotFoundError]()
    for place in places(run_):
        try:
            shard, code = _inspect_store(run_, place, arguments)
        except NotFoundError as error:
            unknown.append(error)
        else:
            shards.append(shard)
            codes.append(code)
    if unknown and not shards:
        raise unknown[0]
    return {"run_dir": str(run_.directory), "shards": shards}, max(codes)


def _inspect_store(run_: Run, place: StoreLocation, arguments: argparse.Namespace) -> tuple[Report, int]:
    security = run_.config.services.security
    found = _ask(place, arguments, read_credentials(security, OPERATOR)) if arguments.action in ONLINE else None
    code = 0
    if found is None:
        report, code = _start_tool(run_, arguments, ["--place", place.name])
        (found,) = report["shards"]
    if arguments.action == "stats":
        found["disk_bytes"] = disk_bytes(place.store)
        found["balanced"] = found["appended_fragments"] == sum(found[f"{bucket}_fragments"] for bucket in BUCKETS)
    return found, code


def _ask(place: StoreLocation, arguments: argparse.Namespace, credentials: Credentials) -> Report | None:
    """Asks replay itself; None where it does not run."""
    with ReplayClient(place.address, credentials=credentials, patience_s=0.0) as client:
        try:
            answer = client.describe()
            is_ours = answer.identity.role == status_service_pb2.ROLE_REPLAY
            if not is_ours or answer.run_id != stored_run(place.store):
                return None
            head = {"name": place.name, "store": str(place.store), "online": True}
            if arguments.action == "stats":
                return head | {name: int(value) for name, value in answer.stats.items()}
            departures = client.why_dropped(arguments.stream, arguments.limit or DEPARTURES)
        except (UnavailableError, DeadlineError):
            return None
    return head | {"departures": [departure.to_dict() for departure in departures]}


def _export(run_: Run, target: Path | None, arguments: argparse.Namespace) -> tuple[Report, int]:
    return _start_tool(run_, arguments, ["--out", str(target)])


def _start_tool(run_: Run, arguments: argparse.Namespace, more: Sequence[str]) -> tuple[Report, int]:
    """Runs the tool, which reads the store."""
    options = [*more]
    options += ["--stream", arguments.stream] if arguments.stream else []
    limit = arguments.limit or (DEPARTURES if arguments.action == "why-dropped" else None)
    options += ["--limit", str(limit)] if limit is not None else []
    return start_tool(MODULE, run_, arguments.action, options)
