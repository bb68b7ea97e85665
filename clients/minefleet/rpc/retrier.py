"""Repeats calls until a peer answers.

A retry is safe because each repeated call carries a name (a fragment, a lease, a version) under which the peer knows
it. gRPC's own retries are not used: they silently leave out messages above 256 KiB.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from minefleet.core.errors import DeadlineError, FleetError, OverloadedError, UnavailableError

logger = logging.getLogger(__name__)

FIRST_DELAY_S = 0.05
MAX_DELAY_S = 2.0
Result = TypeVar("Result")


class StoppedError(FleetError):
    """This process was asked to stop while it waited for a peer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Retrier:
    """Repeats calls to one peer until they are answered, the patience ends, or this process is asked to stop."""

    peer: str
    """Named in logs and errors, for example "replay at 127.0.0.1:4001"."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set when this process is asked to stop; ends every wait at once."""
    patience_s: float | None = None
    """Give up after so long, seconds; None never."""
    report: Callable[[str | None], None] = lambda _: None
    """Called with a wait's reason when it starts, and with None when it is over."""

    def __call__(self, attempt: Callable[[], Result]) -> Result:
        """Calls `attempt` until it returns. Waits between attempts double up to `MAX_DELAY_S`, with jitter.

        Raises:
            StoppedError: If `stopping` was set while waiting.
            FleetError: What `attempt` raised last, when the patience ends or repeating cannot help.
        """
        began, delay, waiting = time.monotonic(), FIRST_DELAY_S, False
        while True:
            try:
                result = attempt()
            except (UnavailableError, DeadlineError, OverloadedError) as error:
                if self.patience_s is not None and time.monotonic() - began > self.patience_s:
                    raise
                waiting = waiting or self._report(error)
                hint = error.retry_after_s if isinstance(error, OverloadedError) else 0.0
                if self.stopping.wait(max(hint, delay * random.uniform(0.5, 1.0))):
                    raise StoppedError(f"stopped while waiting for {self.peer}") from error
                delay = min(2 * delay, MAX_DELAY_S)
            else:
                if waiting:
                    logger.info("%s answers again", self.peer)
                    self.report(None)
                return result

    def _report(self, error: FleetError) -> bool:
        logger.info("waiting for %s: %s", self.peer, error)
        self.report(f"waiting for {self.peer}")
        return True
