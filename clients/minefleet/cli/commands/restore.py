"""`minefleet restore`: makes the run directory of a snapshot."""

import argparse

from minefleet.core.errors import ConfigError
from minefleet.runs.remote_snapshot_store import SnapshotStore
from minefleet.runs.run_yaml import RUN_FILE


def run(arguments: argparse.Namespace) -> int:
    """Makes the directory, and prints the command that goes on."""
    if arguments.if_needed and (arguments.run_dir / RUN_FILE).exists():
        return 0
    if SnapshotStore(arguments.source).restore(arguments.run_dir):
        print(f"minefleet train --resume {arguments.run_dir}")
    elif not arguments.if_needed:
        raise ConfigError(f"{arguments.source} holds no snapshot that is whole")
    return 0
