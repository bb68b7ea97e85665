"""`minefleet snapshot`: copies what a run goes on from to another place."""

import argparse

from minefleet.runs.remote_snapshot_store import SnapshotStore
from minefleet.runs.run_yaml import read_run


def run(arguments: argparse.Namespace) -> int:
    """Replaces the snapshot at the target, and prints what it holds."""
    made = SnapshotStore(arguments.target).upload(read_run(arguments.run_dir))
    print(f"{arguments.target} holds run {made['run_id']} as it was after {made['env_steps']:,} env steps")
    return 0
