"""Logs failures without filling the log."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from minefleet_actor.pool.pool_results import Failure

logger = logging.getLogger(__name__)

FULL_REPORTS = 10
"""Failures of a kind that are logged one by one; after them one per `REPORT_INTERVAL_S`."""
REPORT_INTERVAL_S = 60.0
LINES = 12
"""Lines of a traceback that are logged, the last ones."""


@dataclass(slots=True)
class _Account:
    logged: int = 0
    logged_s: float = 0.0
    silent: int = 0


class FailureLog:
    """Logs failures by kind; those that it leaves out are counted in the next line of their kind."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}

    def record(self, failure: Failure, now_s: float) -> None:
        """Logs a failure, or counts it."""
        account = self._accounts.setdefault(failure.kind, _Account())
        if account.logged >= FULL_REPORTS and now_s - account.logged_s < REPORT_INTERVAL_S:
            account.silent += 1
            return
        more = f" ({account.silent} more since the last such line)" if account.silent else ""
        logger.warning("failure, %s%s: %s", failure.kind, more, _end_of(failure.text))
        account.logged, account.logged_s, account.silent = account.logged + 1, now_s, 0

    def record_all(self, failures: Mapping[int, Failure], slots: range, now_s: float) -> None:
        """Logs failures, or counts them: those of a process's environments, by their places among its slots."""
        for offset, failure in failures.items():
            self.record(Failure(failure.kind, f"slot {slots[offset]}: {failure.text}"), now_s)


def _end_of(text: str) -> str:
    first, *rest = text.strip().splitlines() or [""]
    return "\n".join([first, *(["..."] if len(rest) > LINES else []), *rest[-LINES:]])
