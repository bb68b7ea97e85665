"""Importance ratios that are cut off above, as PPO with off-policy data and V-trace use them."""

import math

from torch import Tensor


def capped(log_ratio: Tensor, bar: float) -> Tensor:
    """Computes min(ratio, bar) from the logarithm of the ratio, whose exponential may overflow."""
    return log_ratio.clamp_max(math.log(bar)).exp()
