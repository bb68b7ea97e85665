"""The log of this process while it serves."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(logging.Formatter().format(record))


@contextmanager
def errors() -> Iterator[list[str]]:
    """Yields the errors that are logged in the block."""
    handler = _Errors()
    logging.getLogger().addHandler(handler)
    try:
        yield handler.lines
    finally:
        logging.getLogger().removeHandler(handler)
