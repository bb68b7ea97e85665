"""No role lives on without one of its threads."""

import logging
import os
import threading

from minefleet.core.errors import EXIT_FAILED

logger = logging.getLogger(__name__)


def die_with_any_thread() -> None:
    """Ends the process at once when a thread dies of what nobody caught.

    Otherwise a role whose serving thread ran out of memory would look alive and answer nobody. It cannot drain either,
    for it may be that thread that the drain waits for; every role survives a sudden end by its own promises.
    """

    def end(died: threading.ExceptHookArgs) -> None:
        name = died.thread.name if died.thread is not None else "a thread"
        try:
            cause = (died.exc_type, died.exc_value, died.exc_traceback)
            logger.critical("%s died, and this role with it", name, exc_info=cause)  # type: ignore[arg-type]
        finally:
            os._exit(EXIT_FAILED)

    threading.excepthook = end
