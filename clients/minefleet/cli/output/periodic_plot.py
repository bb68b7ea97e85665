"""Redraws `curve.png` during a run, in a child process: matplotlib is heavy."""

import importlib.util
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from minefleet.core.child_process_start import PYTHON, start_fresh
from minefleet.core.parent_death import tied

INTERVAL_S = 60.0


class PeriodicPlot:
    """The drawing of one run's curve: about once a minute, and at the end."""

    def __init__(
        self, directory: Path, report: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory = directory
        self._report = report
        self._clock = clock
        self._is_possible = importlib.util.find_spec("matplotlib") is not None
        self._next_s = clock() + INTERVAL_S
        self._child: subprocess.Popen[bytes] | None = None

    def tick(self) -> None:
        """Starts a drawing when one is due and the last one is done."""
        if (
            self._is_possible
            and self._clock() >= self._next_s
            and (self._child is None or self._child.poll() is not None)
        ):
            self._next_s = self._clock() + INTERVAL_S
            self._child = self._start()

    def finish(self) -> None:
        """Draws the whole curve."""
        if not self._is_possible:
            self._report("no curve.png: matplotlib is missing (pip install 'minefleet[plot]')")
            return
        if self._child is not None:
            self._child.wait()
        self._child = self._start()
        if self._child.wait() != 0:
            self._report("no curve.png: drawing it failed; `python -m minefleet.monitoring.plot RUN_DIR` says why")

    def _start(self) -> subprocess.Popen[bytes]:
        command = [*PYTHON, "minefleet.monitoring.plot", str(self._directory)]
        return start_fresh(command, os.environ | tied(), subprocess.DEVNULL)
