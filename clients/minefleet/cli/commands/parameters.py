"""`minefleet parameters`: the versions of the weights.

Asks parameters where it runs; else starts the tool that works on its store.
"""

import argparse
import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from minefleet.cli.output.parameters_reports import RENDER
from minefleet.cli.service_tool_subprocess import Report, run_service_tool
from minefleet.core.atomic_files import disk_bytes
from minefleet.core.errors import DeadlineError, UnavailableError
from minefleet.launch.run_directory_checks import stored_run
from minefleet.monitoring.service_store_paths import parameters_place
from minefleet.rpc.credentials import OPERATOR, read_credentials
from minefleet.rpc.parameters_client import ParametersClient
from minefleet.rpc.weights.manifest import entries_of
from minefleet.runs.default_run_directory import newest_run
from minefleet.runs.exported_version import export
from minefleet.runs.run_yaml import Run, read_run
from minefleet.v1 import status_service_pb2

MODULE = "minefleet_parameters.tools"


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """Arguments of the command line."""

    action: str
    run: Run
    version: int
    """0 for the newest."""
    target: Path | None
    """The directory of an export."""


def run(arguments: argparse.Namespace) -> int:
    """Does what is asked, prints the outcome, and returns the exit code."""
    asked = Asked(
        action=arguments.action,
        run=read_run(arguments.run_dir or newest_run()),
        version=arguments.version,
        target=arguments.target,
    )
    report, code = _ask(asked) or _run_tool(asked)
    if asked.action == "list":
        report["disk_bytes"] = disk_bytes(asked.run.parameters)
    if arguments.json:
        print(json.dumps(report))
    else:
        Console(soft_wrap=True).print(RENDER[asked.action](report))
    return code


def _ask(asked: Asked) -> tuple[Report, int] | None:
    """Asks parameters itself; None where it does not run."""
    place = parameters_place(asked.run)
    credentials = read_credentials(asked.run.config.services.security, OPERATOR)
    with closing(ParametersClient(place.address, credentials=credentials, patience_s=0.0)) as client:
        try:
            answer = client.describe()
        except (UnavailableError, DeadlineError):
            return None
        is_ours = answer.identity.role == status_service_pb2.ROLE_PARAMETERS
        if not is_ours or answer.run_id != stored_run(place.store):
            return None
        head = {"run_dir": str(asked.run.directory), "online": True}
        return head | _answered(asked, client, answer), 0


def _answered(asked: Asked, client: ParametersClient, answer: status_service_pb2.DescribeResponse) -> Report:
    if asked.action == "list":
        return {"versions": [info.to_dict() for info in client.versions()], "stats": dict(answer.stats)}
    if asked.target is None:
        act = client.pin if asked.action == "pin" else client.unpin
        return act(asked.version).to_dict()
    info, weights = client.fetch(asked.version)
    entries = entries_of({name: (array.dtype.name, array.shape) for name, array in weights.items()})
    return export(asked.target, asked.run, info, entries, lambda entry: weights[entry.name])


def _run_tool(asked: Asked) -> tuple[Report, int]:
    """Runs the tool on the store."""
    options = ["--version", str(asked.version)]
    options += ["--out", str(asked.target)] if asked.target is not None else []
    return run_service_tool(MODULE, asked.run, asked.action, options)
