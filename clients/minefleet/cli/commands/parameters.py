"""`minefleet parameters`: the versions of the weights.

Asks parameters where it runs; else starts the tool that works on its store.
"""

import argparse
import json
from contextlib import closing

from rich.console import Console

from minefleet.cli.output.parameters_reports import RENDER
from minefleet.cli.service_tool_subprocess import Report, run_service_tool
from minefleet.core.atomic_files import disk_bytes
from minefleet.core.errors import DeadlineError, UnavailableError
from minefleet.launch.run_directory_checks import stored_run
from minefleet.monitoring.announced_address import address_of
from minefleet.rpc.credentials import OPERATOR, read_credentials
from minefleet.rpc.parameters_client import ParametersClient
from minefleet.rpc.weights.manifest import entries_of
from minefleet.runs.default_run_directory import newest_run
from minefleet.runs.exported_version import export
from minefleet.runs.run_yaml import Run, read_run
from minefleet.v1 import status_service_pb2

MODULE = "minefleet_parameters.tools"


def run(arguments: argparse.Namespace) -> int:
    """Does what is asked, prints the outcome, and returns the exit code."""
    run_ = read_run(arguments.run_dir or newest_run())
    report, code = _ask(run_, arguments) or _run_tool(run_, arguments)
    if arguments.action == "list":
        report["disk_bytes"] = disk_bytes(run_.parameters)
    if arguments.json:
        print(json.dumps(report))
    else:
        Console(soft_wrap=True).print(RENDER[arguments.action](report))
    return code


def _ask(run_: Run, arguments: argparse.Namespace) -> tuple[Report, int] | None:
    """Asks parameters itself; None where it does not run."""
    services = run_.config.services
    address = address_of(run_, "parameters", services.parameters)
    credentials = read_credentials(services.security, OPERATOR)
    with closing(ParametersClient(address, credentials=credentials, patience_s=0.0)) as client:
        try:
            answer = client.describe()
        except (UnavailableError, DeadlineError):
            return None
        is_ours = answer.identity.role == status_service_pb2.ROLE_PARAMETERS
        if not is_ours or answer.run_id != stored_run(run_.parameters):
            return None
        head = {"run_dir": str(run_.directory), "online": True}
        return head | _answered(run_, arguments, client, answer), 0


def _answered(
    run_: Run, arguments: argparse.Namespace, client: ParametersClient, answer: status_service_pb2.DescribeResponse
) -> Report:
    if arguments.action == "list":
        return {"versions": [info.to_dict() for info in client.versions()], "stats": dict(answer.stats)}
    if arguments.target is None:
        act = client.pin if arguments.action == "pin" else client.unpin
        return act(arguments.version).to_dict()
    info, weights = client.fetch(arguments.version)
    entries = entries_of({name: (array.dtype.name, array.shape) for name, array in weights.items()})
    return export(arguments.target, run_, info, entries, lambda entry: weights[entry.name])


def _run_tool(run_: Run, arguments: argparse.Namespace) -> tuple[Report, int]:
    """Runs the tool on the store."""
    options = ["--version", str(arguments.version)]
    options += ["--out", str(arguments.target)] if arguments.target is not None else []
    return run_service_tool(MODULE, run_, arguments.action, options)
