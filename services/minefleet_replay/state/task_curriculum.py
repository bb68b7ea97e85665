"""Draws the task of each grant, where `env.tasks` names some.

By weights, or by success: then a task's weight is multiplied by 4 p (1 - p), p its share of successes, so that what is
neither mastered nor hopeless is played most. No factor falls below `LEAST`: what was hopeless may become possible, and
what was mastered may be forgotten.
"""

import math
from collections import deque
from collections.abc import Mapping
from itertools import accumulate
from random import Random

WINDOW = 50
"""Episodes of a task whose success counts, the newest."""
LEAST = 0.05


class TaskSampler:
    """Tasks with their weights, and how their last episodes ended."""

    def __init__(self, weights: Mapping[str, float], *, by_success: bool, rng: Random) -> None:
        self._weights = dict(weights)
        self._names = list(weights)
        self._rng = rng
        self._last = {name: deque[float](maxlen=WINDOW) for name in weights if by_success}
        self._cumulative: list[float] = []

    def record(self, task: str, success: float) -> None:
        """Counts an episode of a task: 1 for a success, 0 for none, or between."""
        if task in self._last and math.isfinite(success):
            self._last[task].append(min(max(success, 0.0), 1.0))
            self._cumulative = []

    def draw(self) -> str:
        """Returns the task of the next grant."""
        if not self._cumulative:
            self._cumulative = list(accumulate(map(self.weight, self._names)))
        (name,) = self._rng.choices(self._names, cum_weights=self._cumulative)
        return name

    def weight(self, task: str) -> float:
        """The weight with which a task is drawn now."""
        last = self._last.get(task)
        if last is None:
            return self._weights[task]
        rate = (1 + sum(last)) / (2 + len(last))
        return self._weights[task] * max(4 * rate * (1 - rate), LEAST)
