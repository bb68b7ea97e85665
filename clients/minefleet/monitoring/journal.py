"""The journal of a run: its starts, restarts of its roles, changes of its keys, and requests for those, one line each.

| event | written by | when |
|---|---|---|
| `start` | the learner | it begins the run |
| `resume` | the learner | it goes on from a checkpoint; `keys`: those that have changed since |
| `restart` | the launcher | the role `name` has died and will start again; `how` it ended |
| `request` | a command | it wants something of the learner: `minefleet.monitoring.learner_requests_in_journal` |
| `set`, `rollback`, `refused` | the learner | it answers a request, and does from there on as it says |
| `pause` | the learner | the policy has collapsed, says `reason`; it waits for a request |

Each line has `time_s` (Unix time) and a place in the training: `iteration`, `env_steps`, `wall_s`. `keys` is a list of
objects with `key`, `old` and `new`. A line is appended by one write, so that any process of the run may do it.
"""

import errno
import json
import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minefleet.core.atomic_files import sync
from minefleet.core.errors import ConfigError
from minefleet.core.file_tail import last_lines
from minefleet.monitoring.jsonl_tail import AXES, last_row, parse_row
from minefleet.runs.checkpoint_files import CheckpointState, newest
from minefleet.runs.run_yaml import JOURNAL_FILE, METRICS_FILE, RUN_FILE, Run, flat_keys, read_run, to_dict

logger = logging.getLogger(__name__)

MAX_BYTES = 2**20
"""At the end of a journal, which are read: some thousand lines."""

Line = dict[str, Any]


def record_start(run: Run, state: CheckpointState, learner: str = "") -> bool:
    """Records that the learner starts from this state, which is of the run's newest checkpoint, if there is one.

    Args:
        run: What it trains.
        state: Where it goes on.
        learner: Tells this start of it from others.

    Returns:
        Whether that could be written.
    """
    checkpoint = newest(run.checkpoints)
    if checkpoint is None:
        return _try_append(run.directory, "start", asdict(state), learner=learner)
    keys = _changed_keys(run.directory, checkpoint)
    return _try_append(run.directory, "resume", asdict(state), learner=learner, keys=keys)


def record_restart(directory: Path, name: str, how: str) -> None:
    """Records that a role of the run in a directory has died and will start again; `how` says how it ended."""
    place: Line = {}
    with suppress(OSError):
        place = last_row(directory / METRICS_FILE)
    _try_append(directory, "restart", place, name=name, how=how)


def read_journal(directory: Path) -> list[Line]:
    """The last lines of a run's journal, oldest first; without those that are not whole, [] where there is none."""
    path = directory / JOURNAL_FILE
    if not path.is_file():
        return []
    return [row for line in last_lines(path, MAX_BYTES).splitlines() if (row := parse_row(line))]


def read_whole_journal(directory: Path) -> list[Line]:
    """As `read_journal`, however long it is."""
    path = directory / JOURNAL_FILE
    return [row for line in path.read_bytes().splitlines() if (row := parse_row(line))] if path.is_file() else []


def _changed_keys(directory: Path, checkpoint: Path) -> list[Line]:
    """The keys whose values in `run.yaml` differ from the checkpoint's copy."""
    try:
        if (directory / RUN_FILE).read_bytes() == (checkpoint / RUN_FILE).read_bytes():
            return []
        return differing_keys(read_run(checkpoint, RUN_FILE), read_run(directory))
    except (ConfigError, OSError) as error:
        logger.info("the checkpoint's configuration cannot be compared: %s", error)
        return []


def differing_keys(one: Run, other: Run) -> list[Line]:
    """The keys in which two configurations differ, as `key`, `old` and `new`; without `services`, which move."""
    old, new = (flat_keys(to_dict(run.config)) for run in (one, other))
    keys = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    return [{"key": key, "old": old.get(key), "new": new.get(key)} for key in keys if not key.startswith("services.")]


def append(directory: Path, event: str, place: Mapping[str, Any], *, durable: bool = True, **more: Any) -> None:
    """Appends a line, and ends one that a full disk has torn. A durable one survives power loss when this returns.

    Raises:
        OSError: If it cannot be written whole.
    """
    line = {"time_s": time.time(), "event": event, **{axis: place.get(axis, 0) for axis in AXES}, **more}
    descriptor = os.open(directory / JOURNAL_FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        text = b"\n" * is_torn + json.dumps(line, default=str).encode() + b"\n"
        if os.write(descriptor, text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if durable:
            os.fsync(descriptor)
            sync(directory)
    finally:
        os.close(descriptor)


def _try_append(directory: Path, event: str, place: Mapping[str, Any], **more: Any) -> bool:
    """Appends a line, or leaves it out where it cannot be written: training goes on."""
    try:
        append(directory, event, place, durable=False, **more)
    except OSError as error:
        logger.info("%s of %s is not in its journal: %s", event, directory, error)
        return False
    return True
