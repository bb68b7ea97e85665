"""`minefleet eval`: finds the checkpoint and becomes the process that plays it."""

import argparse
import os
import sys
from pathlib import Path

from minefleet.core.child_process_start import PYTHON
from minefleet.runs.default_run_directory import newest_run
from minefleet.runs.trained_policy_files import hold_checkpoint, inspect_policy

MODULE = "minefleet_actor.evaluation.evaluate"


def run(arguments: argparse.Namespace) -> int:
    """Becomes the evaluation."""
    checkpoint, descriptor = hold_checkpoint(arguments.checkpoint or newest_run())
    if descriptor is not None:
        os.set_inheritable(descriptor, True)  # The evaluation holds it until it ends.
    inspect_policy(checkpoint)
    command = evaluation_command(checkpoint, arguments)
    sys.stdout.flush()
    os.execv(command[0], command)


def evaluation_command(checkpoint: Path, arguments: argparse.Namespace) -> list[str]:
    """The command line of the evaluation."""
    command = [*PYTHON, MODULE, str(checkpoint), "--episodes", str(arguments.episodes)]
    for name in ("sample", "random", "json"):
        command += [f"--{name}"] if getattr(arguments, name) else []
    for name in ("seed", "video"):
        value = getattr(arguments, name)
        command += [f"--{name}", str(value)] if value is not None else []
    return command
