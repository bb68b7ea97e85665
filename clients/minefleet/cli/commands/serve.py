"""`minefleet serve`: one role in the foreground. The first one to come writes `run.yaml`; the others must agree."""

import argparse
import os
import sys
import time
from pathlib import Path

from minefleet.cli.config_arguments import ENVIRONMENTS, run_directory, split
from minefleet.config.load import read_settings
from minefleet.core.errors import ConfigError
from minefleet.core.repro_command import reproducible
from minefleet.launch.placement import ONE_THREAD_EACH
from minefleet.launch.role_process import role_command
from minefleet.launch.run_directory_setup import join
from minefleet.runs.run_yaml import RUN_FILE, Run, read_run

POLL_INTERVAL_S = 0.5
"""Time between two looks for a run that somebody else prepares, seconds."""


def run(arguments: argparse.Namespace) -> int:
    """Joins the run and becomes the role."""
    config, overrides = split(arguments.settings, arguments.map_path)
    if config or not arguments.run_dir or any(override.startswith(ENVIRONMENTS) for override in overrides):
        directory = run_directory(arguments.run_dir, config, overrides)
        with reproducible([config, *overrides]):
            settings = read_settings(config, overrides)
            joined = join(settings.of(), directory, of=settings.of)
    elif overrides:
        raise ConfigError(f"without a CONFIG the run in {arguments.run_dir} is as it is; drop {' '.join(overrides)}")
    else:
        joined = _prepared(arguments.run_dir)
    command = [*role_command(arguments.role, joined.directory, arguments.index), *["--stay"] * arguments.stay]
    sys.stdout.flush()
    os.execve(command[0], command, {**ONE_THREAD_EACH, **os.environ})


def _prepared(directory: Path) -> Run:
    """The run that somebody else prepares in a directory; waits for it."""
    if not (directory / RUN_FILE).exists():
        print(f"waiting for a run in {directory}; `minefleet prepare CONFIG --run-dir DIR` makes one", flush=True)
    while not (directory / RUN_FILE).exists():
        time.sleep(POLL_INTERVAL_S)
    return read_run(directory)
