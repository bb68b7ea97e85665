"""How a role is asked to stop."""

import logging
import signal
import threading
from queue import SimpleQueue
from types import FrameType

logger = logging.getLogger(__name__)


def stop_on_signal(stopping: threading.Event) -> None:
    """Sets the event at the first SIGTERM or SIGINT; the second ends the process at once.

    The handler only puts into a SimpleQueue, which is reentrant: setting the event there could deadlock with a wait on
    it that the handler interrupted.
    """
    asked: SimpleQueue[int] = SimpleQueue()

    def handle(signum: int, _: FrameType | None) -> None:
        signal.signal(signum, signal.SIG_DFL)
        asked.put(signum)

    def pass_on() -> None:
        logger.info("asked to stop by %s", signal.Signals(asked.get()).name)
        stopping.set()

    threading.Thread(target=pass_on, name="signals", daemon=True).start()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, handle)
