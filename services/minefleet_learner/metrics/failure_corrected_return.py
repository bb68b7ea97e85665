"""Estimates the mean return of episodes without the bias of those that failures cut."""

from collections.abc import Sequence

import numpy as np

MIN_EPISODES = 10.0
"""Equally weighted episodes that an estimate must be worth."""


def hazard(lengths: Sequence[int], cuts: int) -> float:
    """The chance per step that a failure cuts the episode, h = d / (Σ Lᵢ + d): its maximum likelihood.

    Args:
        lengths: Good steps of every episode, finished or cut; a cut one failed in the step after.
        cuts: d, how many of them a failure cut.
    """
    return cuts / (sum(lengths) + cuts) if cuts else 0.0


def uncut_mean(returns: Sequence[float], lengths: Sequence[int], hazard: float) -> float | None:
    """The mean return that there would be without failures: Σ wᵢ Rᵢ / Σ wᵢ with wᵢ = (1 - h)^(-Lᵢ).

    An episode of L steps is finished, and so counted, with probability (1 - h)^L only: long ones are missing from the
    plain mean. Weighting by the inverse puts them back (inverse probability of censoring weighting; Robins and
    Rotnitzky 1992). That is right where failures strike every step alike; a world that fails where the policy goes
    often, or a length of which no episode was ever finished, it cannot know.

    Args:
        returns: Of finished episodes.
        lengths: Theirs, in steps.
        hazard: h, in [0, 1).

    Returns:
        The mean; None where the weights are worth fewer than `MIN_EPISODES` equal ones, by Kish's (Σ w)² / Σ w².
    """
    if len(returns) != len(lengths):
        raise ValueError(f"returns and lengths must be of the same episodes, got {len(returns)} and {len(lengths)}")
    if not returns:
        return None
    logs = -np.log1p(-hazard) * np.asarray(lengths, np.float64)
    weights = np.exp(logs - logs.max())
    worth = weights.sum() ** 2 / np.square(weights).sum()
    return float(weights @ np.asarray(returns, np.float64) / weights.sum()) if worth >= MIN_EPISODES else None
