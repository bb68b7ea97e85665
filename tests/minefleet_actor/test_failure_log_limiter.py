"""Failures are logged once, with their kind."""

import pytest

from minefleet_actor.pool.failure_log_limiter import FULL_REPORTS, LINES, REPORT_INTERVAL_S, FailureLog
from minefleet_actor.pool.pool_results import Failure


def test_the_first_failures_of_a_kind_are_logged_one_by_one_and_later_ones_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = FailureLog()
    for at_s in range(FULL_REPORTS + 5):
        log.record(Failure("exit", f"number {at_s}"), float(at_s))
    assert [message.split()[-1] for message in caplog.messages] == [str(number) for number in range(FULL_REPORTS)]
    log.record(Failure("hang", "another kind"), 0.0)
    log.record(Failure("exit", "later"), FULL_REPORTS + REPORT_INTERVAL_S)
    log.record(Failure("exit", "too soon"), FULL_REPORTS + REPORT_INTERVAL_S + 1)
    assert caplog.messages[FULL_REPORTS:] == [
        "failure, hang: another kind",
        "failure, exit (5 more since the last such line): later",
    ]


def test_failure_log_of_a_long_traceback_has_its_last_lines(caplog: pytest.LogCaptureFixture) -> None:
    FailureLog().record(Failure("exception", "\n".join(f"line {number}" for number in range(100))), 0.0)
    lines = caplog.messages[0].splitlines()
    assert lines == ["failure, exception: line 0", "...", *(f"line {number}" for number in range(100 - LINES, 100))]
