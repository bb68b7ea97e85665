"""Logging of a role: one line a record, on stderr."""

import logging
import sys


def set_up_logging(role: str, level: str) -> None:
    """Sends every record of this process to stderr, named after the role."""
    logging.captureWarnings(capture=True)
    logging.basicConfig(
        stream=sys.stderr,
        level=level,
        format=f"%(asctime)s %(levelname)-7s {role} %(name)s: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S%z",
        force=True,
    )
