"""Errors of an environment, as far as they are known here."""

from __future__ import annotations

import traceback


class RefusedError(Exception):
    """There is no such environment, or it is none that can be played. The message is whole."""


class EnvError(Exception):
    """An environment returned what it must not, or reports an error.

    Attributes:
        kind: One of `frames.FAILURES`.
    """

    def __init__(self, message: str, kind: str = "contract") -> None:
        super().__init__(message)
        self.kind = kind


def in_one_line(error: BaseException) -> str:
    """The exception with the place that raised it; of ours, its whole message."""
    if type(error).__module__.startswith("minefleet"):
        return " ".join(str(error).split())
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} ({error.filename}, line {error.lineno})"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message} (raised in {frame.filename}, line {frame.lineno})"
