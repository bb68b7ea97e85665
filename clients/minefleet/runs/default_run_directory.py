"""Directories of runs that nobody named: made for a new run, or found as the newest."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import chain, count
from pathlib import Path

from minefleet.core.errors import ConfigError
from minefleet.runs.run_yaml import RUN_FILE

RUNS = Path("runs")
"""Run directories lie here unless named, below the current folder."""


@contextmanager
def fresh_directory(name: str) -> Iterator[Path]:
    """Makes the default directory of a new run, which no other run gets; removes it where nothing is put into it.

    Raises:
        ConfigError: If it cannot be made.
    """
    first = RUNS / f"{name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    for path in chain([first], (first.with_name(f"{first.name}-{number}") for number in count(2))):
        try:
            path.mkdir(parents=True)
            break
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(f"cannot make the run directory {path}: {error.strerror}") from error
    try:
        yield path
    finally:
        with suppress(OSError):  # They hold a run.
            path.rmdir()
            RUNS.rmdir()


def newest_run(prefix: str = "") -> Path:
    """The run that was started last, of those whose directory's name starts with `prefix`.

    Raises:
        ConfigError: If there is none.
    """
    files = list(RUNS.glob(f"{prefix}*/{RUN_FILE}"))
    if not files:
        raise ConfigError(f"there is no run in {RUNS.absolute()}{f' called {prefix}*' if prefix else ''}; name one")
    return max(files, key=lambda path: path.stat().st_mtime).parent
