"""Runs `python -m minefleet_<role>`: the work before and after the role's own body."""

import argparse
import faulthandler
import logging
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import prometheus_client

from minefleet.config import EndpointConfig
from minefleet.core.errors import EXIT_FAILED, EXIT_GAVE_UP, ConfigError, FleetError, RolledBackError
from minefleet.core.function_references import user_line
from minefleet.core.immediate_process_exit import exit_at_once
from minefleet.core.parent_death import die_with_launcher
from minefleet.core.role_index import HELP, label_of, number_of, read_index
from minefleet.rpc.credentials import read_credentials
from minefleet.rpc.enum_names import role_word
from minefleet.rpc.retrier import StoppedError
from minefleet.runs.run_yaml import METRICS_FILE, Run, read_run
from minefleet.v1 import status_service_pb2
from minefleet_runtime.address_reachability import findable
from minefleet_runtime.cpu_time import own_stats
from minefleet_runtime.http_endpoint import probing
from minefleet_runtime.metrics import DiskCollector, StateCollector, register_process
from minefleet_runtime.process_setup import keep_freed_memory, set_up_logging, stop_on_signal
from minefleet_runtime.role_context import RoleContext, section_of
from minefleet_runtime.role_status import StatusTracker

logger = logging.getLogger(__name__)

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def no_arguments(_: argparse.ArgumentParser) -> None:
    """Adds nothing to the command line."""


def run_role(
    role: status_service_pb2.Role.ValueType,
    body: Callable[[RoleContext], None],
    *,
    name: str | None = None,
    has_free_ports: bool = False,
    add_arguments: Callable[[argparse.ArgumentParser], None] = no_arguments,
    argv: Sequence[str] | None = None,
) -> None:
    """Runs a role as this process, and exits.

    Exit code 0 when the body returns or was stopped, and that of a `FleetError`, with one line on stderr. Any other
    exception is a bug and keeps its traceback, below which stands the user's own line, if it came through one; before
    the run's first iteration that ends with 3.

    Args:
        role: What the process does in the fleet.
        body: The role. Heavy modules are imported inside it, so that `--help` answers at once.
        name: Names the process; the role's by default, with the index for actors.
        has_free_ports: Takes free ports of loopback, since another process here has the role's addresses.
        add_arguments: Adds arguments of the role's own; they arrive as `context.arguments`.
        argv: The command line; the process's own by default.
    """
    arguments = _parse(role, name, add_arguments, argv)
    title = name or role_name(role, arguments.index)
    set_up_logging(title, arguments.log_level)
    faulthandler.enable()
    die_with_launcher()
    keep_freed_memory()
    work = partial(_run, role, title, arguments, body, has_free_ports=has_free_ports)
    code = _exit_code(work, title, arguments.run_dir)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # A late SIGTERM must not replace the exit code.
    exit_at_once(code)


def role_name(role: status_service_pb2.Role.ValueType, index: str = "0") -> str:
    """A role's name in its run: "replay", "actor-0", "actor-HOSTNAME"."""
    name = role_word(role)
    return f"{name}-{label_of(index)}" if role == status_service_pb2.ROLE_ACTOR else name


def _parse(
    role: status_service_pb2.Role.ValueType,
    name: str | None,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    argv: Sequence[str] | None,
) -> argparse.Namespace:
    kind = name or role_word(role)
    parser = argparse.ArgumentParser(prog=f"python -m minefleet_{kind}", description=f"The {kind} of a run.")
    parser.add_argument(
        "--run-dir", type=Path, required=True, metavar="DIR", help="the run directory, with its run.yaml"
    )
    parser.add_argument("--index", type=read_index, default="0", help=HELP)
    parser.add_argument(
        "--log-level", choices=LEVELS, default="INFO", help="least severe records to log (default: INFO)"
    )
    add_arguments(parser)
    return parser.parse_args(argv)


def _exit_code(work: Callable[[], None], title: str, run_directory: Path) -> int:
    try:
        work()
    except StoppedError as error:
        logger.info("%s", error)
    except FleetError as error:
        (logger.info if isinstance(error, RolledBackError) else logger.error)("%s", error)
        return error.exit_code
    except Exception as error:
        line = user_line(error)
        if not line:
            raise
        logger.exception("%s fails", title)
        logger.error("%s", line)  # A record of its own, which the launcher quotes.
        metrics = run_directory / METRICS_FILE
        return EXIT_FAILED if metrics.exists() and metrics.stat().st_size else EXIT_GAVE_UP
    logger.info("%s ends", title)
    return 0


def _run(
    role: status_service_pb2.Role.ValueType,
    title: str,
    arguments: argparse.Namespace,
    body: Callable[[RoleContext], None],
    *,
    has_free_ports: bool,
) -> None:
    run, status = read_run(arguments.run_dir), StatusTracker()
    index = number_of(arguments.index)
    title, endpoint = (title, EndpointConfig()) if has_free_ports else _place(run, role, title, index)
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = prometheus_client.CollectorRegistry()
    register_process(registry, title)
    registry.register(StateCollector(status))
    status.add_source(own_stats)
    registry.register(DiskCollector("minefleet_run", run.directory))
    with probing(endpoint.metrics_address, status, registry, f"{section_of(title)}.metrics_address") as address:
        context = RoleContext(
            run=run,
            role=role,
            name=title,
            index=index,
            status=status,
            registry=registry,
            arguments=arguments,
            listen=endpoint.listen,
            metrics_address=findable(address),
            credentials=read_credentials(run.config.services.security, role_word(role)),
        )
        stop_on_signal(context.stopping)
        context.announce("")
        try:
            body(context)
        finally:
            context.withdraw()


def _place(run: Run, role: status_service_pb2.Role.ValueType, title: str, index: int) -> tuple[str, EndpointConfig]:
    """The role's name, and where it listens."""
    if role == status_service_pb2.ROLE_REPLAY:
        if not 0 <= index < len(run.shards):
            raise ConfigError(f"replay has shards 0 to {len(run.shards) - 1}, got --index {index}")
        return run.shards[index].name, run.shards[index].endpoint
    return title, getattr(run.config.services, role_word(role))
