"""Draws learning curves."""

from collections.abc import Sequence
from typing import Any

import numpy as np

Points = Sequence[tuple[float, float]]
"""Steps, and what was reached by then."""


def draw_curves(panel: Any, label: str, runs: Sequence[Points]) -> None:
    """Draws the median of runs over thousands of steps, and the band from the lowest to the highest."""
    if not runs:
        return
    at = np.linspace(0, max(points[-1][0] for points in runs), 200)
    curves = np.array([np.interp(at, *np.array(points).T) for points in runs])
    thousands = at / 1000
    (drawn,) = panel.plot(thousands, np.median(curves, 0), label=label)
    panel.fill_between(thousands, curves.min(0), curves.max(0), color=drawn.get_color(), alpha=0.15, linewidth=0)
