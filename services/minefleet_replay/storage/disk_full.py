"""Recognises errors of a machine that has run out of something for a while."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from minefleet.core.errors import OverloadedError

SHORTAGES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})


@contextmanager
def translated_shortage() -> Iterator[None]:
    """Turns a full disk and too many open files into an OverloadedError; other errors stay as they are."""
    try:
        yield
    except OSError as error:
        if error.errno not in SHORTAGES:
            raise
        raise OverloadedError(f"the disk is full, or too many files are open: {error}") from error
