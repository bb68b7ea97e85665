"""Says what a run waits for when it does not get on."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from minefleet.monitoring.status import RoleStatus, look

STALL_S = 15.0
"""Time without a new iteration after which the roles are asked, and again, seconds."""
REPEAT_S = 120.0
"""Time after which the same is said again, seconds."""


class Stall:
    """Asks the roles in the background while nothing new comes, and tells what those say that do not just run."""

    def __init__(
        self, directory: Path, tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory = directory
        self._tell = tell
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stall")
        self._asked: Future[list[RoleStatus]] | None = None
        self._ask_at_s = clock() + STALL_S
        self._told: dict[str, str] = {}
        self._told_at_s = -REPEAT_S

    @property
    def is_asking(self) -> bool:
        """Whether answers are awaited."""
        return self._asked is not None

    def tick(self, iterated: bool) -> None:
        """Takes the time; `iterated` says whether an iteration was finished since the last tick."""
        if iterated:
            self._ask_at_s, self._told = self._clock() + STALL_S, {}
        elif self._asked is not None:
            self._hear(self._asked)
        elif self._clock() >= self._ask_at_s:
            self._asked = self._thread.submit(lambda: look(self._directory).roles)

    def close(self) -> None:
        """Ends the asking."""
        self._thread.shutdown(cancel_futures=True)

    def _hear(self, asked: "Future[list[RoleStatus]]") -> None:
        if not asked.done():
            return
        self._asked, self._ask_at_s = None, self._clock() + STALL_S
        held_up = [role for role in asked.result() if role.state != "running"]
        states = {role.name: role.state for role in held_up}
        if held_up and (states != self._told or self._clock() - self._told_at_s >= REPEAT_S):
            self._told, self._told_at_s = states, self._clock()
            self._tell("no new iteration: " + "; ".join(map(described, held_up)))


def described(role: RoleStatus) -> str:
    """A role's state in one phrase."""
    says = role.detail if role.detail and role.state != "unreachable" else f"{role.state} {role.detail}".rstrip()
    return f"{role.name}: {says}"
