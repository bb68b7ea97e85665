"""The status of a role: its state, one line that explains it, and statistics."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from minefleet.v1 import status_service_pb2

State = status_service_pb2.State

READY = frozenset({status_service_pb2.STATE_RUNNING, status_service_pb2.STATE_PAUSED})


@dataclass(frozen=True, kw_only=True, slots=True)
class StatusReport:
    """The status at one moment."""

    run_id: str
    state: State.ValueType
    detail: str
    uptime_s: float
    stats: Mapping[str, float]

    @property
    def is_ready(self) -> bool:
        """Whether the role is at work, or stands still on purpose."""
        return self.state in READY


class StatusTracker:
    """The status of a role, for Describe, /readyz and `minefleet status`. Thread-safe.

    STARTING, WAITING, RUNNING and PAUSED follow each other in any order; nothing follows DRAINING.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._run_id = ""
        self._state: State.ValueType = status_service_pb2.STATE_STARTING
        self._detail = ""
        self._stats: dict[str, float] = {}
        self._sources: list[Callable[[], Mapping[str, float]]] = []

    def set_state(self, state: State.ValueType, detail: str = "") -> None:
        """Sets the state, with one line that explains it."""
        with self._lock:
            if self._state != status_service_pb2.STATE_DRAINING or state == self._state:
                self._state, self._detail = state, detail

    def set_waiting(self, message: str | None) -> None:
        """Sets what the role waits for; None: it runs again. Fits `Retrier.report`."""
        if message is None:
            self.set_state(status_service_pb2.STATE_RUNNING)
        else:
            self.set_state(status_service_pb2.STATE_WAITING, message)

    def set_run(self, run_id: str) -> None:
        """Sets the run that the role works for."""
        with self._lock:
            self._run_id = run_id

    def set_stats(self, values: Mapping[str, float]) -> None:
        """Sets counters or gauges, named as in /metrics without the role's prefix."""
        with self._lock:
            self._stats.update(values)

    def add_source(self, source: Callable[[], Mapping[str, float]]) -> None:
        """Adds a source of statistics, called whenever they are read, by the reading thread."""
        with self._lock:
            self._sources.append(source)

    def read_sources(self) -> dict[str, float]:
        """The statistics of all sources."""
        with self._lock:
            sources = list(self._sources)
        return {name: value for source in sources for name, value in source().items()}

    def snapshot(self) -> StatusReport:
        """The status now."""
        with self._lock:
            return StatusReport(
                run_id=self._run_id,
                state=self._state,
                detail=self._detail,
                uptime_s=time.monotonic() - self._began,
                stats=dict(self._stats),
            )
