"""Files that appear whole, and stay."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from minefleet.core.errors import ConfigError


def write_whole(path: Path, text: str, mode: int = 0o666) -> None:
    """Replaces a file durably: readers see the old text or the new, also after a crash.

    Who may read it is `mode`, less the umask. A crash may leave `.NAME.PID` beside it.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write_durably(aside, text.encode(), mode)
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def remove_partial_files(directory: Path) -> None:
    """Removes what a crash in `write_whole` has left in a directory."""
    for aside in directory.glob(".*"):
        aside.unlink()


def write_durably(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Writes a file whose bytes survive power loss; its name survives once the directory is synced too.

    Who may read a new one is `mode`, less the umask.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """Makes a directory appear whole: yields one beside it, which takes its place once the block has ended well.

    What is in it is durable if its files are. A crash may leave `.NAME.PID` beside it.

    Raises:
        ConfigError: If there is something in the target, or it cannot be written.
    """
    place = target.resolve()
    try:
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise ConfigError(f"{target} is not empty; give a new directory")
        place.parent.mkdir(parents=True, exist_ok=True)
        aside = place.with_name(f".{place.name}.{os.getpid()}")
        aside.mkdir()
        try:
            yield aside
            sync(aside)
            aside.rename(place)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        sync(place.parent)
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error}") from error


def disk_bytes(directory: Path) -> int:
    """Bytes of all files below a directory; of those with several names, once. Files may come and go meanwhile."""
    sizes: dict[tuple[int, int], int] = {}
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):
            file = path.lstat()
            sizes[file.st_dev, file.st_ino] = file.st_size
    return sum(sizes.values())


def sync(path: Path) -> None:
    """Makes a file's bytes, or a directory's names, survive power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
