"""`minefleet rerun-update`: becomes the process that repeats a step that was not finite."""

import argparse
import os
import sys
from pathlib import Path

MODULE = "minefleet_learner.rerun"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command line."""
    parser.add_argument("dump", type=Path, metavar="DIR", help="a directory below bad-steps/ of a run")
    parser.add_argument(
        "--pdb",
        action="store_true",
        help="start the debugger before the step, and again where the first tensor that is not finite is made",
    )


def run(arguments: argparse.Namespace) -> int:
    """Becomes the repetition."""
    command = [sys.executable, "-m", MODULE, str(arguments.dump), *(["--pdb"] if arguments.pdb else [])]
    sys.stdout.flush()
    os.execv(command[0], command)
