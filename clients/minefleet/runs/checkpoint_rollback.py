"""Rollbacks on disk: the checkpoint that is meant becomes the newest, and those after it are set aside."""

import logging
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from minefleet.core.atomic_files import sync
from minefleet.core.errors import ConfigError
from minefleet.runs.checkpoint_files import (
    BEST,
    LATEST,
    CheckpointState,
    free_name,
    numbered,
    point,
    read_state,
    remove_leftovers,
)

PREVIOUS = "previous"
"""The last checkpoint of an earlier iteration than the newest one's."""
SET_ASIDE = "set-aside"
"""Below the checkpoints: those that a rollback has undone."""
MAX_SET_ASIDE = 8

logger = logging.getLogger(__name__)


def choose(directory: Path, to: str) -> Path:
    """The checkpoint that a rollback goes to.

    Args:
        directory: Of the run's checkpoints.
        to: `best`, `previous`, a version, or an iteration that is no version of a checkpoint.

    Raises:
        ConfigError: If it is not there; names those that are.
    """
    states = _read_states(path for _, path in sorted(numbered(directory).items())) if directory.is_dir() else {}
    best, last = ((directory / link).resolve().name for link in (BEST, LATEST))
    found = [name for name, state in states.items() if str(state.version) == to]
    found = found or [name for name, state in states.items() if str(state.iteration) == to]
    if to == BEST:
        found = [name for name in states if name == best]
    elif to == PREVIOUS:
        found = [name for name, state in states.items() if last in states and state.iteration < states[last].iteration]
    if not found:
        known = (f"{state.version} (iteration {state.iteration})" for state in states.values())
        raise ConfigError(f"no checkpoint of {directory} is {to}; there are those of version {', '.join(known) or '-'}")
    return directory / found[-1]


def go_back(directory: Path, name: str) -> None:
    """Makes a checkpoint the newest, and sets those after it aside, of which the last `MAX_SET_ASIDE` stay. Repeatable.

    `best` stays, or goes back to the last of the others that was the best when it was written.

    Raises:
        ConfigError: If the checkpoint is missing or damaged.
    """
    read_state(directory / name)
    remove_leftovers(directory)
    paths = [path for _, path in sorted(numbered(directory).items())]
    kept = paths[: paths.index(directory / name) + 1]
    point(directory, LATEST, name)
    best, states = directory / BEST, _read_states(kept)
    if best.is_symlink() and best.readlink().name not in states:
        bests = [
            name for name, at in states.items() if at.best_return is not None and at.best_iteration == at.iteration
        ]
        if bests:
            point(directory, BEST, bests[-1])
        else:
            best.unlink()
    (aside := directory / SET_ASIDE).mkdir(exist_ok=True)
    for path in paths[len(kept) :]:
        path.rename(free_name(aside, int(path.name.partition(".")[0])))
    for path in sorted(aside.iterdir(), key=lambda path: path.stat().st_mtime)[:-MAX_SET_ASIDE]:
        logger.info("removes %s, which was set aside by an earlier rollback", path)
        shutil.rmtree(path)
    sync(aside)
    sync(directory)


def _read_states(paths: Iterable[Path]) -> dict[str, CheckpointState]:
    states = dict[str, CheckpointState]()
    for path in paths:
        with suppress(ConfigError):  # The learner has removed it meanwhile, or it is damaged.
            states[path.name] = read_state(path)
    return states
