"""Requests to the learner of a run, its answers, and the settings that follow from them: lines of the journal.

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

import math
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from minefleet.config import FleetConfig
from minefleet.config.live_settings import with_settings
from minefleet.core.errors import ConfigError
from minefleet.monitoring.journal import Line, append, read_whole_journal
from minefleet.monitoring.jsonl_tail import last_row
from minefleet.runs.run_yaml import METRICS_FILE, Run

REQUEST, SET, ROLLBACK, REFUSED, PAUSE = "request", "set", "rollback", "refused", "pause"
ANSWERS = (SET, ROLLBACK, REFUSED, PAUSE)
STARTS = ("start", "resume")
LOOK_S = 0.5
"""Time between two looks at the journal of a learner that waits, seconds."""
WAYS_ON = "`minefleet rollback` steps back, `minefleet set` goes on with these weights"
"""Ends of a pause."""


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


def set_lines(lines: Iterable[Line]) -> list[Line]:
    """The `set` lines that no rollback has undone, in order."""
    held = list[Line]()
    for line in answers_in(lines).values():
        iteration = line.get("iteration")
        if not isinstance(iteration, int):
            continue
        if line["event"] == ROLLBACK:
            held = [one for one in held if one["iteration"] <= iteration]
        elif line["event"] == SET:
            held.append(line)
    return held


def settings_at(lines: Iterable[Line], iteration: float) -> dict[str, Any]:
    """The values, by key, that iteration 1, 2, ... is trained by where they differ from `run.yaml`."""
    return settings_of_iteration(set_lines(lines), iteration)


def settings_of_iteration(held: Iterable[Line], iteration: float) -> dict[str, Any]:
    """As `settings_at`, of the `set_lines`."""
    return {key: value for line in held if line["iteration"] <= iteration for key, value in _changes(line)}


def settings_to_come(config: FleetConfig, lines: Iterable[Line]) -> dict[str, Any]:
    """The values, by key, once all is set that has been asked for; without requests that cannot be granted."""
    lines = list(lines)
    settings = settings_at(lines, math.inf)
    for line in unanswered(lines):
        with suppress(ConfigError):
            asked = line.get("set")
            more = settings | (asked if isinstance(asked, dict) else {})
            with_settings(config, more)
            settings = more
    return settings


def config_to_come(run: Run) -> FleetConfig:
    """A run's configuration once all is set that has been asked for."""
    return with_settings(run.config, settings_to_come(run.config, read_whole_journal(run.directory)))


def newest_learner(lines: Iterable[Line]) -> str | None:
    """The name of the learner that has started last; None before the first."""
    return next((line.get("learner") for line in reversed([*lines]) if line.get("event") in STARTS), None)


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


def _changes(line: Line) -> Iterable[tuple[str, Any]]:
    keys = line.get("keys")
    for change in keys if isinstance(keys, list) else ():
        if isinstance(change, dict) and isinstance(key := change.get("key"), str) and "new" in change:
            yield key, change["new"]
