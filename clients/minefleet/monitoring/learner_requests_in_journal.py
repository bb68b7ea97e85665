"""Requests to the learner of a run, and its answers: lines of the journal.

    command ── request ─▶ journal ─▶ learner ── set, rollback or refused ─▶ journal ─▶ settings of an iteration

A request has an `id`, which its answer repeats, and what is asked for: `set`, values by dotted key, or `rollback`. The
answer is the moment from which it holds, and nothing changes before it is on disk:

- `set`: `keys` have other values from `iteration` on, counted as in `metrics.jsonl`.
- `rollback`: what was set for iterations after `iteration` is forgotten, if it was set before.
- `refused`: nothing changes; `reason`.
- `pause` answers nobody: the learner waits since the policy has collapsed, `reason`, until a later request is granted.

A learner writes a name of its own, `learner`, into its start and into its answers. One that was frozen while another
took over may still answer: such a line counts for nothing, since a newer start stands before it.
"""

import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from minefleet.monitoring.journal import Line, append
from minefleet.monitoring.jsonl_tail import last_row
from minefleet.runs.run_yaml import METRICS_FILE

REQUEST, SET, ROLLBACK, REFUSED, PAUSE = "request", "set", "rollback", "refused", "pause"
ANSWERS = (SET, ROLLBACK, REFUSED, PAUSE)
STARTS = ("start", "resume")
LOOK_S = 0.5
"""Time between two looks at the journal of a learner that waits, seconds."""


def ask(directory: Path, why: str = "", **asked: Any) -> str:
    """Appends a request to a run's journal, durably; returns its id.

    Raises:
        OSError: If it cannot be written.
    """
    request = uuid.uuid4().hex
    append(directory, REQUEST, last_row(directory / METRICS_FILE), id=request, why=why, **asked)
    return request


def answers_in(lines: Iterable[Line]) -> dict[str, Line]:
    """The answer to each request by its id, in order: the first one by the learner that had started last by then."""
    learner, answers = "", dict[str, Line]()
    for line in lines:
        event, request = line.get("event"), line.get("id")
        if event in STARTS:
            learner = line.get("learner", "")
        elif event in ANSWERS and isinstance(request, str) and line.get("learner", "") == learner:
            answers.setdefault(request, line)
    return answers


def unanswered(lines: Iterable[Line]) -> list[Line]:
    """The requests that have no answer, in order, each once."""
    lines = list(lines)
    requests = dict[str, Line]()
    for line in lines:
        if line.get("event") == REQUEST and isinstance(request := line.get("id"), str):
            requests.setdefault(request, line)
    answers = answers_in(lines)
    return [line for request, line in requests.items() if request not in answers]


def newest_learner(lines: Iterable[Line]) -> str | None:
    """The name of the learner that has started last; None before the first."""
    return next((line.get("learner") for line in reversed([*lines]) if line.get("event") in STARTS), None)
