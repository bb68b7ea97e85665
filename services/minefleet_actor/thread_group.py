"""Background threads whose failure ends the process, by name, instead of going unnoticed."""

import threading
from collections.abc import Callable


class ThreadGroup:
    """Runs bodies in threads and hands the first exception to the caller of `check`."""

    def __init__(self, failed: Callable[[], None]) -> None:
        self._failed_hook = failed
        self._failure: BaseException | None = None
        self._threads: dict[str, threading.Thread] = {}

    def start(self, name: str, body: Callable[[], None]) -> None:
        """Starts a thread."""
        thread = threading.Thread(target=self._run, args=(body,), name=name, daemon=True)
        self._threads[name] = thread
        thread.start()

    def check(self) -> None:
        """Raises what a thread raised, if one did."""
        if self._failure is not None:
            raise self._failure

    def join(self, name: str, timeout_s: float) -> bool:
        """Waits for a thread; says whether it has ended."""
        self._threads[name].join(timeout_s)
        return not self._threads[name].is_alive()

    def _run(self, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:  # noqa: BLE001  # Handed on: `check` raises it in the owner's thread.
            self._failure = error
            self._failed_hook()
