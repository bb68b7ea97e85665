import pytest

from minefleet.v1 import status_service_pb2
from minefleet_runtime.context import StatusBoard


@pytest.mark.parametrize("state", [status_service_pb2.STATE_RUNNING, status_service_pb2.STATE_WAITING])
def test_nothing_follows_draining(state: status_service_pb2.State.ValueType) -> None:
    board = StatusBoard()
    board.set(status_service_pb2.STATE_DRAINING, "flushing")
    board.set(state)
    board.waiting(None)
    assert (board.report().state, board.report().detail) == (status_service_pb2.STATE_DRAINING, "flushing")


def test_a_wait_is_shown_until_it_is_over() -> None:
    board = StatusBoard()
    board.waiting("waiting for replay")
    assert (board.report().state, board.report().detail) == (status_service_pb2.STATE_WAITING, "waiting for replay")
    board.waiting(None)
    assert (board.report().state, board.report().detail) == (status_service_pb2.STATE_RUNNING, "")


def test_a_report_does_not_change_afterwards() -> None:
    board = StatusBoard()
    board.figure("env_steps", 1.0)
    report = board.report()
    board.figure("env_steps", 2.0)
    assert report.figures == {"env_steps": 1.0}
