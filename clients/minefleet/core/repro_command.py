"""Prints the command that reproduces an environment's failure alone."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from minefleet.core.errors import EnvFailedError


def reproduction(settings: Sequence[str]) -> str:
    """The last line of a message about an environment that failed: the command that plays it, and nothing else."""
    return f"reproduce it with: {shlex.join(['minefleet', 'env', *filter(None, settings)])}"


@contextmanager
def reproducible(settings: Sequence[str]) -> Iterator[None]:
    """Appends the command to an environment's failure; `settings` are CONFIG and overrides, or a run.

    Without settings, which no command can name then, it stays as it is.
    """
    try:
        yield
    except EnvFailedError as error:
        if not settings:
            raise
        raise EnvFailedError(f"{error}\n{reproduction(settings)}") from error
