"""`minefleet status`: all roles of a run on one screen."""

import argparse
import json
from pathlib import Path

from rich.console import Console

from minefleet.cli.settings import newest_run
from minefleet.monitoring.status import read_status, render


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command line."""
    parser.add_argument("run_dir", nargs="?", type=Path, metavar="RUN_DIR", help="the run (default: the newest)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Asks all roles and prints what they say."""
    status = read_status(arguments.run_dir or newest_run())
    if arguments.json:
        print(json.dumps(status.to_dict()))
    else:
        Console().print(render(status))
    return 0
