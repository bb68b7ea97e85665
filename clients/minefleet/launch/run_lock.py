"""The lock on a run directory: one launch at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minefleet.core.errors import ConfigError


@contextmanager
def holding(directory: Path) -> Iterator[None]:
    """Holds a run directory against other launchers on this machine.

    Raises:
        ConfigError: If another one holds it.
    """
    descriptor = hold(directory)
    try:
        yield
    finally:
        os.close(descriptor)


def hold(directory: Path) -> int:
    """Does so until the returned descriptor is closed by all that have it.

    Raises:
        ConfigError: If another launcher holds it.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        _lock(descriptor, directory)
    except ConfigError:
        os.close(descriptor)
        raise
    return descriptor


def _lock(descriptor: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(f"{directory} is in use by another launcher; wait until it ends, or stop it") from error
