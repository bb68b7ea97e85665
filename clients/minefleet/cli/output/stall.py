"""Reports what a stalled run waits for."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from minefleet.launch.torchrun_variables import LEARNER
from minefleet.monitoring.status import RoleStatus, read_status

STALL_S = 15.0
"""Time without a new iteration after which the roles are asked, and again, seconds."""
REPEAT_S = 120.0
"""Time after which the same is said again, seconds."""


class Stall:
    """Fetches the roles' statuses in the background while nothing new comes, and reports those that are not running."""

    def __init__(
        self, directory: Path, report: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory = directory
        self._report = report
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stall")
        self._request: Future[list[RoleStatus]] | None = None
        self._request_at_s = clock() + STALL_S
        self._reported: dict[str, str] = {}
        self._reported_at_s = -REPEAT_S

    @property
    def is_asking(self) -> bool:
        """Whether answers are awaited."""
        return self._request is not None

    def tick(self, iterated: bool) -> None:
        """Checks the time; `iterated`: an iteration was finished since the last tick."""
        if iterated:
            self._request_at_s, self._reported = self._clock() + STALL_S, {}
        elif self._request is not None:
            self._check_answer(self._request)
        elif self._clock() >= self._request_at_s:
            self._request = self._thread.submit(lambda: read_status(self._directory).roles)

    def close(self) -> None:
        """Ends the asking."""
        self._thread.shutdown(cancel_futures=True)

    def _check_answer(self, request: "Future[list[RoleStatus]]") -> None:
        if not request.done():
            return
        self._request, self._request_at_s = None, self._clock() + STALL_S
        held_up = [role for role in request.result() if role.state != "running"]
        states = {role.name: role.state for role in held_up}
        if held_up and (states != self._reported or self._clock() - self._reported_at_s >= REPEAT_S):
            self._reported, self._reported_at_s = states, self._clock()
            held_up.sort(key=lambda role: role.name != LEARNER)  # Actors may wait since it does.
            self._report("no new iteration: " + "; ".join(map(described, held_up)))


def described(role: RoleStatus) -> str:
    """A role's state in one phrase."""
    state = role.detail if role.detail and role.state != "unreachable" else f"{role.state} {role.detail}".rstrip()
    return f"{role.name}: {state}"
