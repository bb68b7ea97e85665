"""Answers calls with OverloadedError while the machine has no disk or no file handles left."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from minefleet.core.errors import OverloadedError

SHORTAGES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE})


@contextmanager
def overloaded_when_full(retry_after_s: float = 1.0) -> Iterator[None]:
    """Turns a full disk and too many open files into an OverloadedError; other errors stay as they are."""
    try:
        yield
    except OSError as error:
        if error.errno not in SHORTAGES:
            raise
        raise OverloadedError(f"the disk is full, or too many files are open: {error}", retry_after_s) from error
