"""`minefleet doctor`: what is missing on this machine, for a fleet and for Minecraft, and what to do about it."""

import argparse

from rich.console import Console
from rich.text import Text

from minefleet.cli.config_arguments import split
from minefleet.config.load import load
from minefleet.core.errors import EXIT_FAILED, ConfigError
from minefleet.doctor import Level, examine
from minefleet.runs.default_run_directory import RUNS

COLOURS = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "red"}


def run(arguments: argparse.Namespace) -> int:
    """Prints a line per finding; 1 if one of them is a problem."""
    name, overrides = split(arguments.settings, arguments.map_path)
    if name.endswith(".py"):
        raise ConfigError(f"{name} is a program, and doctor runs none; give its keys, as in env.python=PATH")
    config = load(name, overrides)
    console = Console(soft_wrap=True, highlight=False)
    levels = set()
    for finding in examine(config, RUNS):
        levels.add(finding.level)
        line = Text(f"{finding.level:8}", COLOURS[finding.level]).append(
            f"{finding.subject}: {finding.text}", "default"
        )
        console.print(line)
    return EXIT_FAILED if Level.PROBLEM in levels else 0
