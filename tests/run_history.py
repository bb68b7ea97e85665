"""Checks the history of a run that was killed and rolled back, by its journal and what `mortal_policy` has written."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.mortal_policy import WITNESS

from minefleet.monitoring.journal import read_whole_journal
from minefleet.monitoring.learner_requests_in_journal import PAUSE, ROLLBACK, STARTS, answers_in

Row = dict[str, Any]


def check_history(directory: Path) -> None:
    """Fails where a promise is broken."""
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == list(range(1, len(rows) + 1))
    assert all(before["policy_version"] < after["policy_version"] for before, after in pairwise(rows))
    witness = [json.loads(line) for line in (directory / WITNESS).read_text().splitlines()]
    check_lines(read_whole_journal(directory), witness)


def check_lines(journal: list[Row], witness: list[Row]) -> None:
    """A rollback is followed by a start from its checkpoint, and nobody trains on what an abandoned version acted."""
    answers = {request: line for request, line in answers_in(journal).items() if line["event"] != PAUSE}
    requests = [line["id"] for line in journal if line["event"] == "request"]
    assert [*answers] == requests, "a request has no answer"
    assert [line for line in journal if line.get("id") in answers and line["event"] != "request"] == [*answers.values()]
    for number, line in enumerate(journal):
        if line["event"] == ROLLBACK:
            start = next(later for later in journal[number + 1 :] if later["event"] in STARTS)
            assert start["iteration"] == line["iteration"], (line, start)
            between = [row for row in witness if line["time_s"] < row["time_s"] < start["time_s"] and "acted" in row]
            assert not between, f"somebody trained on after the rollback: {between}"
    abandoned, epochs = list[range](), list[int]()
    for row in witness:
        if "first" in row:
            abandoned.append(range(row["resumed"] + 1, row["first"]))
            epochs.append(row["epoch"])
        elif "acted" in row:
            dead = [version for version in row["acted"] if any(version in span for span in abandoned)]
            assert not dead, f"trained on steps of abandoned versions: {dead} of {abandoned}"
    assert epochs == sorted(set(epochs))
