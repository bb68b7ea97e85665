"""`minefleet prepare`: tries a configuration and writes its `run.yaml`, for roles that are started one by one."""

import argparse
from contextlib import closing

from minefleet.cli.config_arguments import run_directory, split
from minefleet.config.load import read_settings
from minefleet.core.repro_command import reproducible
from minefleet.launch.fork_server import ForkServer
from minefleet.launch.run_directory_setup import configure


def run(arguments: argparse.Namespace) -> int:
    """Makes the run, or has it go on as the configuration says, and prints where it is."""
    config, overrides = split(arguments.settings, arguments.map_path)
    directory = run_directory(arguments.run_dir, config, overrides)
    with reproducible([config, *overrides]), closing(ForkServer()) as forks:
        settings = read_settings(config, overrides, forks.start)
        configured = configure(settings.of(), directory, forks.start, settings.of)
    print(configured.directory)
    return 0
