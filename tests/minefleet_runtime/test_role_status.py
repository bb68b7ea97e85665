import pytest

from minefleet.v1 import status_service_pb2
from minefleet_runtime.role_status import StatusTracker


@pytest.mark.parametrize("state", [status_service_pb2.STATE_RUNNING, status_service_pb2.STATE_WAITING])
def test_status_stays_draining_whatever_is_set_afterwards(state: status_service_pb2.State.ValueType) -> None:
    board = StatusTracker()
    board.set_state(status_service_pb2.STATE_DRAINING, "flushing")
    board.set_state(state)
    board.set_waiting(None)
    assert (board.snapshot().state, board.snapshot().detail) == (status_service_pb2.STATE_DRAINING, "flushing")


def test_status_is_waiting_until_the_wait_is_over() -> None:
    board = StatusTracker()
    board.set_waiting("waiting for replay")
    assert (board.snapshot().state, board.snapshot().detail) == (status_service_pb2.STATE_WAITING, "waiting for replay")
    board.set_waiting(None)
    assert (board.snapshot().state, board.snapshot().detail) == (status_service_pb2.STATE_RUNNING, "")


def test_status_snapshot_does_not_change_afterwards() -> None:
    board = StatusTracker()
    board.set_stats({"env_steps": 1.0})
    report = board.snapshot()
    board.set_stats({"env_steps": 2.0})
    assert report.stats == {"env_steps": 1.0}
