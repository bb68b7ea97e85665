"""The command line: `minefleet COMMAND ...`.

Every command has a function in `arguments_per_command`, and a module in `commands` with `run(arguments) -> exit code`,
which is imported when its arguments have been read: help and mistakes answer at once.

Exit codes: 0 done, 1 failed, 2 the configuration or the command line cannot work, 130 stopped by a signal.
"""

import argparse
import importlib
import locale
import os
import sys
from collections.abc import Callable, Sequence
from importlib import metadata

from minefleet.cli import arguments_per_command
from minefleet.cli.intermixed_argument_parser import CommandParser
from minefleet.cli.output.lossy_stderr import LossyStderr

COMMANDS = {
    "train": "train a policy: start all roles, keep them alive, show how it goes",
    "sweep": "train with one set of values after another, and see which did best",
    "compare": "compare runs: medians with intervals, over their seeds",
    "prepare": "try a configuration and make its run, for roles that are started one by one",
    "serve": "run one role of a run in the foreground",
    "host": "run environments on this machine for an actor elsewhere",
    "set": "change keys of a run while it goes",
    "status": "show how all roles of a run fare",
    "monitor": "start a Prometheus that scrapes the roles of a run, and a Grafana that shows them",
    "watch": "serve a page that shows runs, their environments and pictures while they train",
    "rollback": "go back to an older checkpoint of a run, while it trains or for its next start",
    "eval": "play whole episodes with a checkpoint",
    "env": "play an environment alone with random actions, and report its speed and failures",
    "deaths": "group the deaths of a run's environments, and show one",
    "replay": "look into replay: stats, why-dropped, fsck, export",
    "parameters": "look into the versions of the weights: list, pin, unpin, export",
    "certs": "make certificates by which the roles of a fleet know each other: init, issue",
    "snapshot": "copy what a run goes on from to another place, such as s3://BUCKET/RUN, also while it runs",
    "restore": "make the run directory of a snapshot, for `minefleet train --resume`",
    "vpt": "convert files of OpenAI's or MineStudio's VPT into ones from which no code can run",
    "config": "show a configuration, resolve it as a run would, or explain its keys",
    "doctor": "look what is missing on this machine, for a fleet and for Minecraft",
    "demo": "train Crafter for about three minutes and show what was learned",
}
MODULES = {
    "prepare": "create_run_directory",
    "eval": "evaluate",
    "monitor": "start_prometheus_grafana",
    "set": "set_live_keys",
    "snapshot": "upload_run_snapshot",
}
"""Commands whose module and function have another name."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    if argv is None:
        _open_standard_streams()
        _use_utf8()
        sys.stderr = LossyStderr()
    words = list(sys.argv[1:] if argv is None else argv)
    parser = make_parser()
    given, unknown = parser.parse_known_args(words)
    if unknown and "settings" not in given:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return _run(
        importlib.import_module(f"minefleet.cli.commands.{_module_of(given.command)}").run, given, unknown, words
    )


def make_parser() -> CommandParser:
    """The parser of the whole command line."""
    parser = CommandParser(
        prog="minefleet",
        description="Distributed PPO for game agents whose environments are slow and crash-prone.",
        epilog="`minefleet COMMAND --help` says more.",
    )
    parser.add_argument("--version", action="version", version=f"minefleet {metadata.version('minefleet')}")
    choice = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    for name, purpose in COMMANDS.items():
        getattr(arguments_per_command, _module_of(name))(choice.add_parser(name, help=purpose, description=purpose))
    return parser


def _module_of(command: str) -> str:
    return MODULES.get(command, command)


def _open_standard_streams() -> None:
    """Opens what is closed of stdin, stdout and stderr: the next file would get its number, and prints with it."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # The lowest free number is this one.


def _use_utf8() -> None:
    """Starts anew in Python's UTF-8 mode where the locale has another encoding; what it starts inherits the mode."""
    if not sys.flags.utf8_mode and locale.getpreferredencoding(do_setlocale=False).lower() not in ("utf-8", "utf8"):
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _run(
    command: Callable[[argparse.Namespace], int], arguments: argparse.Namespace, unknown: list[str], words: list[str]
) -> int:
    from minefleet.core.errors import EXIT_CONFIG, EXIT_FAILED, EXIT_SIGNAL, ConfigError, FleetError

    try:
        if unknown:
            from minefleet.cli.config_arguments import refuse_options

            refuse_options(unknown, words)
        return command(arguments)
    except FleetError as error:
        print(f"minefleet: {error}", file=sys.stderr)
        return EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_SIGNAL
    except BrokenPipeError:
        # The reader, as in `| head`, has seen enough; what is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
