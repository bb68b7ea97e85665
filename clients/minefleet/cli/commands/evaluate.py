"""`minefleet eval`: finds the checkpoint and becomes the process that plays it."""

import argparse
import os
import sys
from pathlib import Path

from minefleet.cli.settings import newest_run
from minefleet.config.checks import LIMIT
from minefleet.core.subprocess_call import PYTHON
from minefleet.runs.trained_policy import hold_checkpoint, inspect_policy

MODULE = "minefleet_actor.evaluation.evaluate"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command line."""
    parser.add_argument(
        "checkpoint",
        nargs="?",
        type=Path,
        help="a checkpoint, an exported version, or a run for its last checkpoint (default: the newest run)",
    )
    parser.add_argument("--episodes", type=positive, default=100, metavar="N", help="how many (default: 100)")
    parser.add_argument("--seed", type=seed, help="seed of environments and sampling")
    parser.add_argument("--sample", action="store_true", help="sample actions instead of taking the likeliest")
    parser.add_argument("--random", action="store_true", help="play a freshly initialised policy, sampling")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--video", type=Path, metavar="DIR", help="also film one of the episodes, there")


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


def positive(text: str) -> int:
    """Parses an integer >= 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be >= 1, got {number}")
    return number


def seed(text: str) -> int:
    """Parses a seed, in [0, 2**63)."""
    number = int(text)
    if not 0 <= number < LIMIT:
        raise argparse.ArgumentTypeError(f"must be in [0, 2**63), got {number}")
    return number
