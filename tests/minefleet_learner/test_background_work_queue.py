import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minefleet.core.errors import FencedError
from minefleet.rpc.retrier import StoppedError
from minefleet_learner.background_work_queue import Backlog

ROOM = 3


class Work:
    """Doubles numbers, each when it is let."""

    def __init__(self, failing: int | None = None) -> None:
        self.let = threading.Semaphore(0)
        self.begun: list[int] = []
        self.given_up = threading.Event()
        self.failing = failing

    def __call__(self, item: int) -> int:
        self.begun.append(item)
        self.let.acquire()
        if item == self.failing:
            raise FencedError("a newer epoch has taken over")
        return 2 * item

    def backlog(self, *, background: bool = True) -> Backlog[int, int]:
        return Backlog(self, room=ROOM, background=background, give_up=self.given_up.set)


@given(lets=st.lists(st.integers(0, 2), min_size=8, max_size=8))
def test_backlog_works_items_off_in_order_whatever_the_delays(lets: list[int]) -> None:
    work = Work()
    backlog, seen, released = work.backlog(), [0], 0
    for item, let in enumerate(lets, 1):
        due = max(let, item - ROOM - released)  # Without which there would never be room.
        for _ in range(due):
            work.let.release()
        released += max(0, due)
        backlog.make_room()
        backlog.put(item)
        seen.append(backlog.newest() or 0)
    work.let.release(len(lets))
    backlog.flush()
    assert work.begun == list(range(1, len(lets) + 1))
    assert seen == sorted(seen)
    assert backlog.newest() == 2 * len(lets)
    backlog.close()


def test_backlog_takes_iterations_up_to_its_room_while_none_is_finished() -> None:
    work = Work()
    backlog = work.backlog()
    for item in range(ROOM):
        backlog.make_room()
        backlog.put(item)
    assert backlog.newest() is None
    work.let.release(ROOM)
    backlog.close()


def test_backlog_failure_ends_the_work_and_every_other_wait() -> None:
    work = Work(failing=1)
    backlog = work.backlog()
    for item in range(ROOM):
        backlog.put(item)
    work.let.release(ROOM)
    assert work.given_up.wait(60)
    with pytest.raises(FencedError):
        backlog.flush()
    with pytest.raises(StoppedError):
        backlog.flush()
    assert work.begun == [0, 1]
    backlog.close()


def test_backlog_without_a_thread_does_the_work_in_put_and_raises_there() -> None:
    work = Work(failing=1)
    backlog = work.backlog(background=False)
    work.let.release(2)
    backlog.put(0)
    assert backlog.newest() == 0
    with pytest.raises(FencedError):
        backlog.put(1)
