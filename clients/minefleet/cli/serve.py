"""`minefleet serve`: one role in the foreground. The first one to come writes `run.yaml`; the others must agree."""

import argparse
import os
import sys
from pathlib import Path

from minefleet.cli.settings import RUNS, add_settings, required, split
from minefleet.config.load import load, name_of
from minefleet.launch.child import role_command
from minefleet.launch.prepare import join
from minefleet.reproduce import reproducible

ROLES = ("parameters", "replay", "learner", "actor")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command line."""
    parser.add_argument("role", choices=ROLES)
    add_settings(parser)
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="the run's directory (default: runs/CONFIG)")
    parser.add_argument("--index", type=int, default=0, help="tells actors and shards of replay apart (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    """Joins the run and becomes the role."""
    config, overrides = split(arguments.settings, arguments.map_path)
    directory = arguments.run_dir or RUNS / name_of(required(config))
    with reproducible([config, *overrides]):
        joined = join(load(required(config), overrides), directory)
    command = role_command(arguments.role, joined.directory, arguments.index)
    sys.stdout.flush()
    os.execv(command[0], command)
