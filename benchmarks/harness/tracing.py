"""What a side of `benchmarks/training.py` did: its iterations, and what its processes took."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.watching import Watch

Row = tuple[float, float, float | None]
"""Seconds, steps trained on so far, and the mean return of the last episodes; None before there are any."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One run of a side."""

    parameters: int
    """Of its network."""
    rows: Sequence[Row]
    watch: Watch
    """What its processes took."""

    def rate(self, warm_up_s: float, seconds: float) -> float:
        """Steps trained on per second, for so long, from `warm_up_s` after the first iteration on."""
        began_s = self.rows[0][0] + warm_up_s
        steady = [row for row in self.rows if began_s <= row[0] <= began_s + seconds]
        if len(steady) < 2:
            raise ValueError(f"{seconds} s are too short: {len(steady)} of {len(self.rows)} iterations ended in them")
        return (steady[-1][1] - steady[0][1]) / (steady[-1][0] - steady[0][0])
