"""Decides which checkpoints of a run stay, and keeps those that somebody reads."""

import fcntl
import os
import shutil
from pathlib import Path

from minefleet.runs.checkpoint_files import BEST, LATEST, STATE_FILE, numbered


def hold(path: Path) -> int | None:
    """Keeps `prune` from a checkpoint until the descriptor that it returns is closed; None where it is too late."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if (path / STATE_FILE).exists():
            return descriptor
    except BlockingIOError:
        pass
    os.close(descriptor)
    return None


def prune(directory: Path, *, save_interval: int, keep_interval: int) -> None:
    """Removes the checkpoints that nobody asked to keep.

    `latest` and `best` stay, the newest multiple of `save_interval`, and of those multiples all of `keep_interval`. 0
    disables an interval. Of several of one iteration only the last stays. One that `hold` holds goes at a later call.
    """
    last = {iteration: path for (iteration, _), path in sorted(numbered(directory).items())}
    saved = [iteration for iteration in last if save_interval and iteration % save_interval == 0]
    kept = {last[iteration].resolve() for iteration in saved if keep_interval and iteration % keep_interval == 0}
    kept |= {last[iteration].resolve() for iteration in saved[-1:]}
    kept |= {link.resolve() for name in (LATEST, BEST) if (link := directory / name).is_symlink()}
    for path in numbered(directory).values():
        if path.resolve() not in kept:
            _remove_unless_held(path)


def _remove_unless_held(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path)
    except BlockingIOError:
        return  # Somebody reads it; it goes after a later checkpoint.
    finally:
        os.close(descriptor)
