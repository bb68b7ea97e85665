"""All promises that a history can contradict."""

from collections.abc import Callable, Iterator

from tests.history import lending, storing
from tests.history.history import History
from tests.history.survey import Survey

CHECKS: tuple[Callable[[History, Survey], Iterator[str]], ...] = (
    storing.lost,
    storing.unexplained,
    storing.altered,
    lending.torn,
    lending.overused,
    lending.miscounted,
    lending.misheld,
    lending.stale,
    storing.misjudged,
    lending.abandoned,
    lending.unfenced,
    lending.receding,
    storing.doubled,
    storing.admitted,
    lending.ill_answered,
    storing.misreported,
    storing.misadded,
    storing.unbalanced,
)


def faults(history: History, survey: Survey) -> list[str]:
    """All that contradicts any promise."""
    return [f"{check.__name__}: {fault}" for check in CHECKS for fault in check(history, survey)]
