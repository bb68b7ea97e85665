"""`minefleet status`: all roles of a run on one screen."""

import argparse
import json
import signal
import time
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.live import Live

from minefleet.cli.output.status_screen import render
from minefleet.core.errors import ConfigError
from minefleet.monitoring.status import read_status
from minefleet.runs.default_run_directory import newest_run

WATCH_INTERVAL_S = 1.0
"""Between two screens."""


def run(arguments: argparse.Namespace) -> int:
    """Asks all roles and prints what they say."""
    directory = arguments.run_dir or newest_run()
    if arguments.watch:
        return watch(directory)
    status = read_status(directory)
    if arguments.json:
        print(json.dumps(status.to_dict()))
    else:
        Console().print(render(status))
    return 0


def watch(directory: Path) -> int:
    """Shows the status in a screen of its own, which is gone after Ctrl-C or SIGTERM.

    Raises:
        ConfigError: If stdout is no terminal, or there is no run in the directory.
    """
    console, status = Console(), read_status(directory)
    if not console.is_terminal:
        raise ConfigError("status --watch needs a terminal; --json is for programs")
    for number in (signal.SIGINT, signal.SIGTERM):  # A shell's background jobs inherit that Ctrl-C is ignored.
        signal.signal(number, signal.default_int_handler)
    with suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(render(status), refresh=True)
            time.sleep(WATCH_INTERVAL_S)
            status = read_status(directory)
    return 0
