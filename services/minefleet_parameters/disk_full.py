"""A full disk as an answer, and what a crash leaves between files."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minefleet.core.errors import OverloadedError

DISK_FULL_RETRY_S = 5.0
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def refusing_when_full() -> Iterator[None]:
    """Turns a full disk into `OverloadedError`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise OverloadedError(f"parameters has no room on its disk: {error.strerror}", DISK_FULL_RETRY_S) from error


def remove_asides(directory: Path) -> None:
    """Removes what a crash in `write_whole` has left."""
    for aside in directory.glob(".*"):
        aside.unlink()
