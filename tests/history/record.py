"""Histories: what a process asked of the fleet and what it was told, one JSON line per event.

A line is written before the call is made and another when it has ended; a call without a second line has an unknown
outcome. Times are of the monotonic clock, which all processes of a machine share: a call that ended before another one
was made came before it.
"""

import itertools
import json
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from minefleet.errors import ConflictError, FencedError, FleetError, NotFoundError, RejectedError

Ending = Literal["ok", "fail", "info"]
"""`info`: whether it happened is not known."""

UNKNOWN = math.inf
REFUSALS = (ConflictError, FencedError, NotFoundError, RejectedError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call from its beginning to its end."""

    kind: str
    asked: dict[str, Any]
    sent: float
    back: float = UNKNOWN
    ending: Ending = "info"
    answer: dict[str, Any] = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        return self.ending == "ok"

    @property
    def is_fenced(self) -> bool:
        return self.ending == "fail" and self.answer["error"] == FencedError.__name__

    def precedes(self, other: "Call") -> bool:
        """Whether it had ended before the other was made."""
        return self.back < other.sent


class Recorder:
    """Appends to the history of one process. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    @contextmanager
    def call(self, kind: str, **asked: Any) -> Iterator[dict[str, Any]]:
        """Records a call. What it answers goes into the dictionary."""
        number, answer = next(self._numbers), dict[str, Any]()
        self._write(number, "invoke", {"kind": kind, "asked": asked})
        try:
            yield answer
        except REFUSALS as error:
            self._write(number, "fail", {"answer": {"error": type(error).__name__, "text": str(error)}})
            raise
        except FleetError as error:
            self._write(number, "info", {"answer": {"error": type(error).__name__, "text": str(error)}})
            raise
        self._write(number, "ok", {"answer": answer})

    def close(self) -> None:
        os.close(self._descriptor)

    def _write(self, number: int, event: str, data: dict[str, Any]) -> None:
        with self._lock:
            line = json.dumps({"number": number, "event": event, "at": time.monotonic(), **data}) + "\n"
            os.write(self._descriptor, line.encode())


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events of one history. A line that a kill has cut did not happen."""
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def read_calls(directory: Path) -> list[Call]:
    """The calls of all histories, by the time at which they were made."""
    calls = [call for path in sorted(directory.glob("*.jsonl")) for call in calls_of(read_events(path))]
    return sorted(calls, key=lambda call: call.sent)


def calls_of(events: list[dict[str, Any]]) -> Iterator[Call]:
    """Joins the events of one process."""
    ends = {event["number"]: event for event in events if event["event"] != "invoke"}
    for event in events:
        if event["event"] == "invoke":
            yield _call(event, ends.get(event["number"]))


def _call(begin: dict[str, Any], end: dict[str, Any] | None) -> Call:
    if end is None:
        return Call(kind=begin["kind"], asked=begin["asked"], sent=begin["at"])
    back = UNKNOWN if end["event"] == "info" else end["at"]
    return Call(
        kind=begin["kind"],
        asked=begin["asked"],
        sent=begin["at"],
        back=back,
        ending=end["event"],
        answer=end["answer"],
    )
