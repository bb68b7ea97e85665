"""`minefleet replay`: looks into replay. Asks it where it runs; else starts the tool that reads its store."""

import argparse
import json
from collections.abc import Sequence

from rich.console import Console

from minefleet.cli.output.replay_reports import BUCKETS, RENDER
from minefleet.cli.service_tool_subprocess import Report, run_service_tool
from minefleet.core.atomic_files import disk_bytes
from minefleet.core.errors import DeadlineError, NotFoundError, UnavailableError
from minefleet.launch.run_directory_checks import stored_run
from minefleet.monitoring.announced_address import address_of
from minefleet.rpc.credentials import OPERATOR, read_credentials
from minefleet.rpc.replay_client import ReplayClient
from minefleet.runs.default_run_directory import newest_run
from minefleet.runs.run_yaml import Run, Shard, read_run
from minefleet.v1 import status_service_pb2

MODULE = "minefleet_replay.tools"
ONLINE = ("stats", "why-dropped")


def run(arguments: argparse.Namespace) -> int:
    """Looks, prints what it found, and returns the tool's exit code."""
    run_ = read_run(arguments.run_dir or newest_run())
    if arguments.action == "export":
        report, code = _run_tool(run_, arguments, ["--out", str(arguments.target)])
    else:
        report, code = _inspect(run_, arguments)
    if arguments.json:
        print(json.dumps(report))
    else:
        Console(soft_wrap=True).print(RENDER[arguments.action](report))
    return code


def _inspect(run_: Run, arguments: argparse.Namespace) -> tuple[Report, int]:
    """Looks at each process of replay."""
    shards, codes, unknown = [], [], list[NotFoundError]()
    for shard in run_.shards:
        try:
            found, code = _inspect_store(run_, shard, arguments)
        except NotFoundError as error:
            unknown.append(error)
        else:
            shards.append(found)
            codes.append(code)
    if unknown and not shards:
        raise unknown[0]
    return {"run_dir": str(run_.directory), "shards": shards}, max(codes)


def _inspect_store(run_: Run, shard: Shard, arguments: argparse.Namespace) -> tuple[Report, int]:
    found = _ask(run_, shard, arguments) if arguments.action in ONLINE else None
    code = 0
    if found is None:
        report, code = _run_tool(run_, arguments, ["--place", shard.name])
        (found,) = report["shards"]
    if arguments.action == "stats":
        found["disk_bytes"] = disk_bytes(shard.store)
        found["balanced"] = found["appended_fragments"] == sum(found[f"{bucket}_fragments"] for bucket in BUCKETS)
    return found, code


def _ask(run_: Run, shard: Shard, arguments: argparse.Namespace) -> Report | None:
    """Asks replay itself; None where it does not run."""
    address = address_of(run_, shard.name, shard.endpoint)
    credentials = read_credentials(run_.config.services.security, OPERATOR)
    with ReplayClient(address, credentials=credentials, patience_s=0.0) as client:
        try:
            answer = client.describe()
            is_ours = answer.identity.role == status_service_pb2.ROLE_REPLAY
            if not is_ours or answer.run_id != stored_run(shard.store):
                return None
            head = {"name": shard.name, "store": str(shard.store), "online": True}
            if arguments.action == "stats":
                return head | {name: int(value) for name, value in answer.stats.items()}
            departures = client.why_dropped(arguments.stream, arguments.limit)
        except (UnavailableError, DeadlineError):
            return None
    return head | {"departures": [departure.to_dict() for departure in departures]}


def _run_tool(run_: Run, arguments: argparse.Namespace, more: Sequence[str]) -> tuple[Report, int]:
    """Runs the tool, which reads the store."""
    options = [*more]
    options += ["--stream", arguments.stream] if arguments.stream else []
    options += ["--limit", str(arguments.limit)] if arguments.limit is not None else []
    return run_service_tool(MODULE, run_, arguments.action, options)
