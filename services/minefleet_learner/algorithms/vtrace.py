"""V-trace: values and advantages of a policy from steps that another one acted.

Shape legend: B = rows in the batch, T = steps in a row.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from minefleet_learner.algorithms.reverse_scan import accumulate, discounts
from minefleet_learner.algorithms.shapes import check_shapes
from minefleet_learner.algorithms.truncated_importance_ratio import capped


@dataclass(frozen=True, kw_only=True, slots=True)
class VTrace:
    """[B, T] float each, in reward units; 0 at padding."""

    advantage: Tensor
    """Âₜ, not weighted by ρₜ: the loss does that."""
    target: Tensor
    """vₜ."""


@torch.no_grad()
def vtrace(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    log_ratio: Tensor,
    *,
    discount: float,
    gae_lambda: float,
    rho_bar: float,
    c_bar: float,
    mask: Tensor | None = None,
    duration: Tensor | None = None,
) -> VTrace:
    """Computes V-trace(γ, λ) targets and advantages over a batch of rows.

        ρₜ = min(ρ̄, π(aₜ|sₜ) / μ(aₜ|sₜ))        cₜ = λ min(c̄, π(aₜ|sₜ) / μ(aₜ|sₜ))
        δₜ = rₜ + γₜ (1 - terminatedₜ) V(sₜ₊₁) - V(sₜ),   γₜ = γ^dₜ
        vₜ = V(sₜ) + ρₜ δₜ + γₜ cₜ (1 - doneₜ) (vₜ₊₁ - V(sₜ₊₁)),   doneₜ = terminatedₜ ∨ truncatedₜ
        Âₜ = δₜ + γₜ λ (1 - doneₜ) (vₜ₊₁ - V(sₜ₊₁))

    π is the policy to evaluate, μ the behaviour policy. vₜ is eq. 1 of the paper as its remark 1 writes it, and cₜ that
    of its remark 2. Âₜ bootstraps from λ vₜ₊₁ + (1 - λ) V(sₜ₊₁): with λ = 1 that is the paper's rₜ + γ vₜ₊₁ - V(sₜ)
    (§4.2), and where π is μ and both bars are at least 1 it is GAE, whatever λ is. A step that ended its episode, the
    end of the row and padding stop the recursion as they do in `generalized_advantages`, whose dₜ it shares.

    Espeholt et al. 2018, https://arxiv.org/abs/1802.01561.

    Args:
        reward: [B, T] float, rₜ received for the action taken in sₜ.
        value: [B, T] float, V(sₜ) in reward units.
        next_value: [B, T] float, V(sₜ₊₁) in reward units.
        terminated: [B, T] bool, the task ended with this step.
        truncated: [B, T] bool, the episode was cut after this step.
        log_ratio: [B, T] float, ln π(aₜ|sₜ) - ln μ(aₜ|sₜ).
        discount: γ per step of the environment's own, in [0, 1].
        gae_lambda: λ, in [0, 1].
        rho_bar: ρ̄ > 0. Decides which policy's values the targets converge to: that of π ∝ min(ρ̄ μ, π).
        c_bar: c̄ > 0. Decides only how fast.
        mask: [B, T] bool, False where there is only padding, whose content does not matter; None for no padding.
        duration: [B, T] int, dₜ >= 1; None for 1 everywhere.

    Raises:
        ValueError: If the inputs do not share one [B, T] shape.
    """
    mask = torch.ones_like(terminated) if mask is None else mask
    check_shapes(reward, value, next_value, terminated, truncated, log_ratio, mask, duration)
    gamma = discounts(discount, duration, reward)
    log_ratio = log_ratio.masked_fill(~mask, 0.0)
    rho, c = (capped(log_ratio, bar) for bar in (rho_bar, c_bar))
    delta = (reward + gamma * next_value.masked_fill(terminated, 0.0) - value).masked_fill(~mask, 0.0)
    stop = terminated | truncated | ~mask
    correction = accumulate(rho * delta, gamma * gae_lambda * c, stop)
    behind = torch.nn.functional.pad(correction[:, 1:], (0, 1)).masked_fill(stop, 0.0)
    return VTrace(advantage=delta + gamma * gae_lambda * behind, target=(value + correction).masked_fill(~mask, 0.0))
