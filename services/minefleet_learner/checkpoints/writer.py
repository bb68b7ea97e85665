"""Writes checkpoints beside the training.

    loop ── claim          backlog ── submit ──▶ one thread ──▶ checkpoints/

The loop claims the iterations that shall be written and copies what they need; the backlog submits them when they are
acked. At most one is being written; the backlog waits for the last. A rolling one is left out while an earlier claim is
not yet written or is younger than `latest_min_interval_s`; one that is to be kept never is.
"""

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from minefleet.config import TrainConfig
from minefleet.runs.checkpoint_files import Checkpoint, write
from minefleet.runs.checkpoint_retention import prune


class CheckpointWriter:
    """Decides which iterations are written, and writes them."""

    def __init__(
        self,
        directory: Path,
        *,
        save_interval: int,
        keep_interval: int,
        latest_min_interval_s: float,
        background: bool,
        clock: Callable[[], float] = time.monotonic,
        saved: Callable[[], None] = lambda: None,
    ) -> None:
        self._directory = directory
        self._save_interval = save_interval
        self._keep_interval = keep_interval
        self._latest_min_interval_s = latest_min_interval_s
        self._clock = clock
        self._saved = saved
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint") if background else None
        self._writing: Future[None] | None = None
        self._lock = threading.Lock()
        self._claims = 0
        self._claimed = -math.inf  # When the last one was.

    def configure(self, config: TrainConfig) -> None:
        """Writes and keeps as another configuration says from now on."""
        self._save_interval, self._keep_interval = config.save_interval, config.keep_interval
        self._latest_min_interval_s = config.latest_min_interval_s

    def claim(self, iteration: int) -> bool:
        """Whether this iteration shall be written; then it must be submitted."""
        with self._lock:
            is_due = self._claims == 0 and self._clock() - self._claimed >= self._latest_min_interval_s
            if not is_due and not self._is_kept(iteration):
                return False
            self._claims += 1
            self._claimed = self._clock()
            return True

    def submit(self, checkpoint: Checkpoint) -> None:
        """Writes a claimed checkpoint, in the background if so asked."""
        self.wait()
        if self._thread is None:
            self._write_claimed(checkpoint)
        else:
            self._writing = self._thread.submit(self._write_claimed, checkpoint)

    def write(self, checkpoint: Checkpoint) -> Path:
        """Writes a checkpoint now and removes those that it replaces."""
        place = write(self._directory, checkpoint)
        prune(self._directory, save_interval=self._save_interval, keep_interval=self._keep_interval)
        self._saved()
        return place

    def wait(self) -> None:
        """Waits for the last one; raises what writing it raised."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Waits for the last one and ends the thread; raises what writing it raised."""
        if self._thread is not None:
            self._thread.shutdown()
        self.wait()

    def _write_claimed(self, checkpoint: Checkpoint) -> None:
        self.write(checkpoint)
        with self._lock:
            self._claims -= 1

    def _is_kept(self, iteration: int) -> bool:
        return self._save_interval > 0 and iteration % self._save_interval == 0
