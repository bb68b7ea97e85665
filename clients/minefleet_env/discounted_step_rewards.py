"""`info["step_rewards"]`: the rewards of a decision that took several steps of the environment, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from minefleet_env.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Mapping

STEP_REWARDS = "step_rewards"
TOLERANCE = 1e-3
"""Share of the rewards' magnitudes by which their sum may differ from the reward, which may be a float32."""


def discounted(reward: float, info: Mapping[str, Any], discount: float) -> tuple[float, int]:
    """Returns Σᵢ γⁱ rᵢ over the steps of a decision, and how many steps it took: without `step_rewards` one.

    Raises:
        EnvError: If they are no list of finite numbers, at least one, that add up to `reward`.
    """
    rewards = info.get(STEP_REWARDS)
    if rewards is None:
        return reward, 1
    try:
        each = np.asarray(rewards, np.float64)
    except (TypeError, ValueError):
        each = np.empty(0)
    with np.errstate(invalid="ignore"):
        is_sum = abs(each.sum() - reward) <= TOLERANCE * np.abs(each).sum()
    if each.ndim != 1 or not each.size or not is_sum:
        raise EnvError(f"info[{STEP_REWARDS!r}] must list rewards that add up to {reward}, got {str(rewards)[:200]}")
    return float(each @ discount ** np.arange(each.size)), each.size
