"""Crafter's score. Free of gymnasium and crafter, since the learner reports it."""

import math
from collections.abc import Mapping

ACHIEVEMENTS = (
    "collect_coal",
    "collect_diamond",
    "collect_drink",
    "collect_iron",
    "collect_sapling",
    "collect_stone",
    "collect_wood",
    "defeat_skeleton",
    "defeat_zombie",
    "eat_cow",
    "eat_plant",
    "make_iron_pickaxe",
    "make_iron_sword",
    "make_stone_pickaxe",
    "make_stone_sword",
    "make_wood_pickaxe",
    "make_wood_sword",
    "place_furnace",
    "place_plant",
    "place_stone",
    "place_table",
    "wake_up",
)
"""The 22 achievements."""


METRICS = tuple(f"achievement/{name}" for name in ACHIEVEMENTS)
"""The episode metrics, 1 or 0, that say which of them an episode unlocked."""


def score(success_rates: Mapping[str, float]) -> float:
    """Computes Crafter's score, in percent: the geometric mean of the success rates, shifted by one percent.

        S = exp(1/22 Σᵢ ln(1 + sᵢ)) - 1,   sᵢ in percent

    Hafner 2021, https://arxiv.org/abs/2109.06780.

    Args:
        success_rates: For each of `METRICS`, its mean over episodes, in [0, 1].

    Raises:
        ValueError: If a metric is missing or unknown, or a rate lies outside [0, 1].
    """
    if set(success_rates) != set(METRICS):
        differing = sorted(set(success_rates) ^ set(METRICS))
        raise ValueError(f"expected the rates of the 22 achievements; missing or unknown: {', '.join(differing)}")
    wrong = {name: rate for name, rate in success_rates.items() if not 0 <= rate <= 1}
    if wrong:
        raise ValueError(f"success rates must lie in [0, 1], got {wrong}")
    return math.exp(sum(math.log1p(100 * rate) for rate in success_rates.values()) / len(METRICS)) - 1
