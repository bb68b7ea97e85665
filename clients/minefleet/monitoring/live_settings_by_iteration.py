"""The settings of each iteration, as a journal's answers to `minefleet set` and `minefleet rollback` make them."""

import math
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from minefleet.config import FleetConfig
from minefleet.config.live_settings import with_settings
from minefleet.core.errors import ConfigError
from minefleet.monitoring.journal import Line, read_whole_journal
from minefleet.monitoring.learner_requests_in_journal import ROLLBACK, SET, answers_in, unanswered
from minefleet.runs.run_yaml import Run


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


def _changes(line: Line) -> Iterable[tuple[str, Any]]:
    keys = line.get("keys")
    for change in keys if isinstance(keys, list) else ():
        if isinstance(change, dict) and isinstance(key := change.get("key"), str) and "new" in change:
            yield key, change["new"]
