"""Makes snapshots beside the training, in a thread that nobody waits for before the end."""

import logging
import threading
import time

from minefleet.core.errors import ConfigError, FencedError
from minefleet.runs.remote_snapshot_store import Names, SnapshotStore
from minefleet.runs.run_yaml import Run

logger = logging.getLogger(__name__)

RETRY_S = 2.0


class SnapshotUploader:
    """Uploads the run, again and again where the store fails; does nothing where there is no target."""

    def __init__(self, run: Run) -> None:
        """Starts the thread."""
        self._run, self._config = run, run.config.upload_config
        self._uploaded: int | None = None
        """The iteration of the newest snapshot, or of the first that was to be in one."""
        self._due, self._ending = threading.Event(), threading.Event()
        self._thread = (
            threading.Thread(target=self._work, name="snapshots", daemon=True) if self._config.target else None
        )
        if self._thread is not None:
            self._thread.start()

    def ask(self, iteration: int) -> dict[str, int]:
        """Asks for a snapshot; returns for the row of this iteration how many the newest one lacks."""
        self._due.set()
        self._uploaded = iteration - 1 if self._uploaded is None else self._uploaded
        return {"snapshot_lag": iteration - self._uploaded} if self._config.target else {}

    def end(self) -> None:
        """Asks for the last snapshot."""
        self._ending.set()
        self._due.set()

    def join(self, timeout_s: float) -> None:
        """Waits for the last snapshot, so long at most; the second time does nothing."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(max(0.0, timeout_s))
        if thread is not None and thread.is_alive():
            again = f"minefleet snapshot {self._run.directory} {self._config.target}"
            logger.warning("the last snapshot is not whole; when the store answers: %s", again)

    def _work(self) -> None:
        names: Names = {}
        reason, is_over = "", False
        while not is_over:
            self._due.wait()
            self._due.clear()
            is_over = self._ending.is_set()
            try:
                self._uploaded = SnapshotStore(self._config.target, names).upload(self._run)["position"][-1]
                self._ending.wait(self._config.min_interval_s)
            except Exception as error:  # noqa: BLE001  # No fault of a store ends the training.
                if reason != (reason := str(error) or repr(error)):
                    logger.warning("no snapshot; training goes on: %s", reason)
                is_over = is_over and isinstance(error, ConfigError | FencedError)  # Another try would change nothing.
                self._due.set()
                time.sleep(RETRY_S)
