"""Parsers of single arguments, each of which refuses what the command cannot use."""

import argparse
from pathlib import Path


def pair(text: str) -> tuple[str, str]:
    """OLD and NEW; NEW is taken from the current folder."""
    old, equals, new = text.partition("=")
    if not old or not equals or not new:
        raise argparse.ArgumentTypeError(f"must be OLD=NEW, got {text!r}")
    return old, str(Path(new).expanduser().absolute())


def positive(text: str) -> int:
    """Parses an integer >= 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be >= 1, got {number}")
    return number


def seed(text: str) -> int:
    """Parses a seed, in [0, 2**63)."""
    number = int(text)
    if not 0 <= number < 2**63:
        raise argparse.ArgumentTypeError(f"must be in [0, 2**63), got {number}")
    return number
