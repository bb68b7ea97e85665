"""Generalized advantage estimation.

Shape legend: B = rows in the batch, T = steps in a row.
"""

import torch
from torch import Tensor

from minefleet_learner.algorithms.reverse_scan import accumulate, discounts
from minefleet_learner.algorithms.shapes import check_shapes


@torch.no_grad()
def generalized_advantages(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    discount: float,
    gae_lambda: float,
    mask: Tensor | None = None,
    duration: Tensor | None = None,
) -> Tensor:
    """Computes truncated GAE(γ, λ) over a batch of rows.

        δₜ = rₜ + γₜ (1 - terminatedₜ) V(sₜ₊₁) - V(sₜ),   γₜ = γ^dₜ
        Âₜ = δₜ + γₜ λ (1 - doneₜ) Âₜ₊₁,                  doneₜ = terminatedₜ ∨ truncatedₜ

    dₜ is how many steps of its own the environment took in step t, and rₜ their rewards, each discounted from the first
    one on: a semi-Markov decision process (Sutton, Precup and Singh 1999,
    https://doi.org/10.1016/S0004-3702(99)00052-1, §3). λ is per step t, whatever its duration.

    A terminated step has no future, so it bootstraps from zero. A truncated step has a future that the row does not
    show, so it bootstraps from V(sₜ₊₁), where sₜ₊₁ is the observation *before* the reset; only the recursion stops
    there, as it does at the end of the row and at padding.

    Schulman et al. 2016, https://arxiv.org/abs/1506.02438, eq. 11-16.

    Args:
        reward: [B, T] float, rₜ received for the action taken in sₜ.
        value: [B, T] float, V(sₜ) in reward units.
        next_value: [B, T] float, V(sₜ₊₁) in reward units.
        terminated: [B, T] bool, the task ended with this step.
        truncated: [B, T] bool, the episode was cut after this step.
        discount: γ per step of the environment's own, in [0, 1].
        gae_lambda: Bias-variance trade-off λ, in [0, 1].
        mask: [B, T] bool, False where there is only padding, whose content does not matter; None for no padding.
        duration: [B, T] int, dₜ >= 1; None for 1 everywhere.

    Returns:
        [B, T] advantages Âₜ, 0 at padding; value targets are `advantage + value`.

    Raises:
        ValueError: If the inputs do not share one [B, T] shape.
    """
    mask = torch.ones_like(terminated) if mask is None else mask
    check_shapes(reward, value, next_value, terminated, truncated, mask, duration)
    gamma = discounts(discount, duration, reward)
    delta = (reward + gamma * next_value.masked_fill(terminated, 0.0) - value).masked_fill(~mask, 0.0)
    return accumulate(delta, gamma * gae_lambda, terminated | truncated | ~mask)
