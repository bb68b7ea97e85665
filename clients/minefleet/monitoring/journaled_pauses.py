"""The pause of a learner whose policy has collapsed, as its journal has it."""

from collections.abc import Sequence

from minefleet.monitoring.journal import Line
from minefleet.monitoring.learner_requests_in_journal import PAUSE, REQUEST, ROLLBACK, SET, answers_in

WAYS_ON = "`minefleet rollback` steps back, `minefleet set` goes on with these weights"
"""Ends of a pause."""


def last_pause(lines: Sequence[Line]) -> Line | None:
    """The last pause, or the answer to a later request that has ended it; None before the first."""
    last, answers = None, answers_in(lines)
    for line in lines:
        answer = answers.get(str(line.get("id")), {})
        if answer is line and line["event"] == PAUSE:
            last = line
        elif last is not None and line.get("event") == REQUEST and answer.get("event") in (SET, ROLLBACK):
            last = answer
    return last


def pause_reason(lines: Sequence[Line]) -> str:
    """The reason of a pause that lasts; "" where none does."""
    last = last_pause(lines)
    return str(last.get("reason")) if last is not None and last["event"] == PAUSE else ""
