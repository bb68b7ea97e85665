"""One thread that works off what the loop hands over, in order.

    loop ── put ──▶ backlog ──▶ work ──▶ newest ──▶ loop

The loop fills the backlog, the thread empties it. The thread waits for whom its work waits for; `close` ends what has
not begun. The loop waits only for room, which an item's end makes. What an item raises ends the work for good: the loop
meets it at its next call, and `give_up` ends whatever else the loop waits for.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

from minefleet.monitoring.learner_requests_in_journal import LOOK_S
from minefleet.rpc.retrier import StoppedError

MAX_ITERATIONS_AHEAD = 6
"""Versions that the loop may be ahead of parameters, whatever `max_staleness` allows: each is a copy of the weights."""
Item = TypeVar("Item")
Result = TypeVar("Result")


def room_for(max_staleness: int) -> int:
    """Iterations that a backlog holds at most."""
    return min(max_staleness, MAX_ITERATIONS_AHEAD) + 2


class Backlog(Generic[Item, Result]):
    """Items that are worked off one after another."""

    def __init__(
        self,
        work: Callable[[Item], Result],
        *,
        room: int,
        background: bool,
        give_up: Callable[[], None],
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        """Stores its arguments.

        Args:
            work: Done for each item; its result is what `newest` returns.
            room: Most items at once, the one that is worked on included.
            background: Whether there is a thread; otherwise `put` does the work.
            give_up: Called by the thread when an item raises.
            waiting: Called again and again while the loop waits for the thread.
        """
        self._work = work
        self.room = room
        self._give_up, self._waiting = give_up, waiting
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="backlog") if background else None
        self._pending: deque[Future[Result]] = deque()
        self._newest: Result | None = None
        self._is_broken = False  # The thread's own.

    def newest(self) -> Result | None:
        """The result of the last item that is done; raises what one raised."""
        while self._pending and self._pending[0].done():
            self._pop()
        return self._newest

    def make_room(self) -> None:
        """Waits until one more item may be put; raises what one raised."""
        while len(self._pending) >= self.room:
            self._pop()

    def put(self, item: Item) -> None:
        """Queues an item."""
        if self._thread is None:
            self._newest = self._work(item)
        else:
            self._pending.append(self._thread.submit(self._try, item))

    def flush(self) -> None:
        """Waits until all is done; raises what an item raised."""
        while self._pending:
            self._pop()

    def close(self) -> None:
        """Waits for the item that is worked on, and ends the thread."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def _pop(self) -> None:
        item = self._pending.popleft()
        while not wait([item], LOOK_S).done:
            self._waiting()
        self._newest = item.result()

    def _try(self, item: Item) -> Result:
        if self._is_broken:
            raise StoppedError("stopped: an earlier iteration was not finished")
        try:
            return self._work(item)
        except BaseException:
            self._is_broken = True
            self._give_up()
            raise
