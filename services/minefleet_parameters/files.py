"""Files that appear whole, and a full disk as an answer."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minefleet.errors import OverloadedError

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


def write_whole(path: Path, text: str) -> None:
    """Replaces a file durably: readers see the old text or the new, also after a crash."""
    aside = path.with_name(f".{path.name}")
    try:
        with aside.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def remove_asides(directory: Path) -> None:
    """Removes what a crash in `write_whole` has left."""
    for aside in directory.glob(".*"):
        aside.unlink()


def sync(path: Path) -> None:
    """Makes a file's bytes, or a directory's names, survive power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
