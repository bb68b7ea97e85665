"""Writes checkpoints beside the training.

    loop ── submit ──▶ one thread ──▶ checkpoints/

The loop makes a snapshot in memory and goes on; at most one is being written. A rolling one is left out while the last
one is being written or is younger than `latest_interval_s`; one that is to be kept waits until the last is written.
"""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from minefleet.checkpoint import Checkpoint, prune, write


class CheckpointWriter:
    """Decides which iterations are written, and writes them."""

    def __init__(
        self,
        directory: Path,
        *,
        save_interval: int,
        keep_interval: int,
        latest_interval_s: float,
        background: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._save_interval = save_interval
        self._keep_interval = keep_interval
        self._latest_interval_s = latest_interval_s
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint") if background else None
        self._writing: Future[Path] | None = None
        self._began = -math.inf

    def wants(self, iteration: int) -> bool:
        """Whether this iteration shall be written."""
        is_idle = self._writing is None or self._writing.done()
        return self._is_kept(iteration) or (is_idle and self._clock() - self._began >= self._latest_interval_s)

    def submit(self, checkpoint: Checkpoint) -> None:
        """Writes a checkpoint, in the background if so asked."""
        self.wait()
        self._began = self._clock()
        if self._thread is None:
            self.write(checkpoint)
        else:
            self._writing = self._thread.submit(self.write, checkpoint)

    def write(self, checkpoint: Checkpoint) -> Path:
        """Writes a checkpoint now and removes those that it replaces."""
        place = write(self._directory, checkpoint)
        prune(self._directory, save_interval=self._save_interval, keep_interval=self._keep_interval)
        return place

    def wait(self) -> None:
        """Waits for the last one; raises what writing it raised."""
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def close(self) -> None:
        """Waits for the last one and ends the thread."""
        self.wait()
        if self._thread is not None:
            self._thread.shutdown()

    def _is_kept(self, iteration: int) -> bool:
        return self._save_interval > 0 and iteration % self._save_interval == 0
