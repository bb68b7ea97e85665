"""The checker of histories finds what is wrong."""

from typing import Any

import pytest
from tests.run_history import check_lines

Row = dict[str, Any]


def line(event: str, time_s: float, **more: Any) -> Row:
    return {"event": event, "time_s": time_s, "learner": "a", **more}


JOURNAL = [
    line("start", 0, iteration=0),
    line("request", 5, id="x"),
    line("rollback", 6, id="x", iteration=10),
    line("resume", 8, iteration=10),
]
WITNESS: list[Row] = [
    {"time_s": 1, "resumed": 0, "first": 1, "epoch": 1},
    {"time_s": 2, "acted": [1]},
    {"time_s": 9, "resumed": 11, "first": 31, "epoch": 2},
    {"time_s": 10, "acted": [11, 31]},
]
WRONG: dict[str, tuple[list[Row], list[Row]]] = {
    "a request without an answer": (JOURNAL[:2] + JOURNAL[3:], WITNESS),
    "two answers": ([*JOURNAL, line("rollback", 9, id="x", iteration=10)], WITNESS),
    "a start from elsewhere": ([*JOURNAL[:3], line("resume", 8, iteration=30)], WITNESS),
    "a learner that trains on": (JOURNAL, [*WITNESS[:2], {"time_s": 7, "acted": [2]}, *WITNESS[2:]]),
    "steps of an abandoned version": (JOURNAL, [*WITNESS, {"time_s": 11, "acted": [30, 31]}]),
    "an epoch twice": (JOURNAL, [*WITNESS, {"time_s": 12, "resumed": 31, "first": 33, "epoch": 2}]),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_check_lines_finds_each_wrong_history(wrong: str) -> None:
    journal, witness = WRONG[wrong]
    with pytest.raises(AssertionError):
        check_lines(journal, witness)


def test_check_lines_accepts_a_rollback() -> None:
    check_lines(JOURNAL, WITNESS)
