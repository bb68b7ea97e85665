"""Files that appear whole, and stay."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Replaces a file durably: readers see the old text or the new, also after a crash.

    A crash may leave `.NAME.PID` beside it.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write_durably(aside, text.encode())
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_durably(path: Path, data: bytes) -> None:
    """Writes a file whose bytes survive power loss; its name survives once the directory is synced too."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Makes a file's bytes, or a directory's names, survive power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
