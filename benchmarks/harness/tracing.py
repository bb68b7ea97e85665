"""Records a side of `benchmarks/training.py`: its iterations, and the cost of its processes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.watching import Watch


class Row(NamedTuple):
    """One iteration."""

    at_s: float
    steps: float
    """Trained on so far."""
    mean_return: float | None
    """Of the last episodes; None before there are any."""
    waited: float = 0.0
    """Share of the iteration that the learner waited for steps; only ours says."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One run of a side."""

    parameters: int
    """Of its network."""
    rows: Sequence[Row]
    watch: Watch
    """Cost of its processes."""

    def steady(self, warm_up_s: float, seconds: float) -> Sequence[Row]:
        """The iterations that end within so many seconds, from `warm_up_s` after the first one on.

        Raises:
            ValueError: If there are fewer than two.
        """
        began_s = self.rows[0].at_s + warm_up_s
        steady = [row for row in self.rows if began_s <= row.at_s <= began_s + seconds]
        if len(steady) < 2:
            raise ValueError(f"{seconds} s are too short: {len(steady)} of {len(self.rows)} iterations end in them")
        return steady

    def rate(self, warm_up_s: float, seconds: float) -> float:
        """Steps trained on per second meanwhile."""
        first, *_, last = self.steady(warm_up_s, seconds)
        return (last.steps - first.steps) / (last.at_s - first.at_s)
