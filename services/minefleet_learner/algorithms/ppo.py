"""The PPO objective and the numbers that explain it.

Shape legend: B = fragments in the micro-batch, T = steps. Steps whose mask is False are padding: their content does not
matter, not even NaN, and no gradient reaches them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from minefleet.policies.layers.mergeable_moments import Moments, moments_of
from minefleet_learner.algorithms.shapes import check_shapes
from minefleet_learner.algorithms.truncated_importance_ratio import capped


@dataclass(frozen=True, kw_only=True, slots=True)
class PPOLoss:
    """One micro-batch's objective and the numbers that explain it (all scalars)."""

    total: Tensor
    """The loss; the only one with a gradient."""
    policy: Tensor
    """The negated clipped surrogate, before its weight."""
    value: Tensor
    """½ mean squared error in normalised units, before its weight."""
    entropy: Tensor
    """Mean entropy of the action distribution, nats."""
    kl_reference: Tensor
    """Mean KL(current ‖ reference), nats; 0 without a reference."""
    approx_kl: Tensor
    """Mean KL(behaviour ‖ current) over the mask, the k3 estimator of http://joschu.net/blog/kl-approx.html."""
    clip_fraction: Tensor
    """Share of the mask's steps whose ratio ρₜ left [1 - clip, 1 + clip]."""
    max_log_ratio: Tensor
    """Largest |ln ρₜ|, before it is clamped."""
    head_entropy: Mapping[str, Tensor] = field(default_factory=dict)
    """Mean entropy of each named part of an action, nats; they add up to `entropy`."""


class StepTargets(NamedTuple):
    """Constants of the objective, for every step: [B, T] float each."""

    behaviour_logp: Tensor
    """ln μ(aₜ|sₜ) of the policy that acted, as the actor recorded it."""
    proximal_logp: Tensor
    """ln π_prox(aₜ|sₜ); `behaviour_logp` for PPO as it was first published."""
    advantage: Tensor
    """Âₜ, normalised if wanted."""
    value_target: Tensor
    """V̂ₜ in normalised units."""
    anchor_value: Tensor
    """V(sₜ) before the update, in normalised units."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PPOCoefs:
    """Weights and bounds of the objective."""

    clip: float
    """ε, > 0."""
    policy: float = 1.0
    """c_p, >= 0; 0 while only the value is trained."""
    value: float = 0.5
    """c_v, >= 0."""
    entropy: float = 0.0
    """c_e, >= 0."""
    rho: float = 0.0
    """ρ_KL, >= 0."""
    weight_cap: float = math.inf
    """w̄, > 0."""
    clips_value: bool = False
    """The squared error is the larger of that of V and that of V kept within ±ε of the anchor."""
    log_ratio_range: float = 50.0
    """ln ρₜ is clamped to ± this, > 0; steps beyond it have no gradient."""


def ppo_loss(
    *,
    logp: Tensor,
    value: Tensor,
    entropy: Tensor,
    targets: StepTargets,
    mask: Tensor,
    coefs: PPOCoefs,
    kl_reference: Tensor | None = None,
    count: float | None = None,
) -> PPOLoss:
    """Computes the clipped surrogate, the value loss, the entropy bonus and the pull towards a reference.

        ρₜ = π(aₜ|sₜ) / π_prox(aₜ|sₜ)        wₜ = min(π_prox(aₜ|sₜ) / μ(aₜ|sₜ), w̄)
        L  = -c_p E[wₜ min(ρₜ Âₜ, clip(ρₜ, 1-ε, 1+ε) Âₜ)] + c_v ½E[(V - V̂)²] - c_e E[H(π)] + ρ_KL E[KL(π ‖ π_ref)]

    One update may not go far from the proximal policy π_prox; wₜ corrects for its distance from the behaviour policy μ.

    Schulman et al. 2017, https://arxiv.org/abs/1707.06347, eq. 7 and 9; with a proximal policy, Hilton et al. 2021,
    https://arxiv.org/abs/2110.00641, the decoupled clipped objective.

    Args:
        logp: [B, T] float, ln π(aₜ|sₜ) under the parameters being trained.
        value: [B, T] float, V(sₜ) in normalised units.
        entropy: [B, T] float, of π in sₜ.
        targets: Constants of the steps; no gradient reaches them.
        mask: [B, T] bool, False at padding.
        coefs: Weights and bounds.
        kl_reference: [B, T] float, KL(π ‖ π_ref) in sₜ; None without a reference.
        count: Divisor of the means in the objective; None for the steps in this mask. Micro-batches whose gradients are
            added up take their total number of steps, so that every step weighs alike.

    Raises:
        ValueError: If the tensors do not share one [B, T] shape.
    """
    tensors = (logp, value, entropy, torch.zeros_like(logp) if kl_reference is None else kl_reference, *targets)
    check_shapes(*tensors, mask)
    # Padding is blanked on entry: blanked only at the end, its NaNs would come back in the gradient as 0 · NaN.
    logp, value, entropy, kl, *blanked = (tensor.masked_fill(~mask, 0.0) for tensor in tensors)
    acted_logp, proximal_logp, advantage, value_target, anchor_value = (tensor.detach() for tensor in blanked)
    full_log_ratio = logp - proximal_logp
    ratio = full_log_ratio.clamp(-coefs.log_ratio_range, coefs.log_ratio_range).exp()
    near = ratio.clamp(1 - coefs.clip, 1 + coefs.clip)
    surrogate = capped(proximal_logp - acted_logp, coefs.weight_cap) * torch.min(ratio * advantage, near * advantage)
    error = _squared_error(value, value_target, anchor_value if coefs.clips_value else value.detach(), coefs.clip)
    policy, half_error = -masked_mean(surrogate, mask, count), 0.5 * masked_mean(error, mask, count)
    mean_entropy, mean_kl = masked_mean(entropy, mask, count), masked_mean(kl, mask, count)
    since_acted = (logp - acted_logp).clamp(-coefs.log_ratio_range, coefs.log_ratio_range)
    return PPOLoss(
        total=coefs.policy * policy + coefs.value * half_error - coefs.entropy * mean_entropy + coefs.rho * mean_kl,
        policy=policy.detach(),
        value=half_error.detach(),
        entropy=mean_entropy.detach(),
        kl_reference=mean_kl.detach(),
        approx_kl=masked_mean(since_acted.exp() - 1 - since_acted, mask).detach(),
        clip_fraction=masked_mean(((ratio - 1).abs() > coefs.clip).to(ratio.dtype), mask),
        max_log_ratio=full_log_ratio.abs().max().detach(),
    )


def normalize(advantage: Tensor, mask: Tensor, moments: Moments | None = None) -> Tensor:
    """Shifts and scales advantages [B, T] to mean 0 and standard deviation 1; 0 at padding.

    `moments` are those of the steps of all ranks; None takes them over the mask.
    """
    moments = moments or moments_of(advantage[mask])
    return ((advantage - moments.mean) / (moments.variance.sqrt() + 1e-8)).masked_fill(~mask, 0.0)


def masked_mean(tensor: Tensor, mask: Tensor, count: float | None = None) -> Tensor:
    """Sum over the mask divided by `count`, which is the number of steps in the mask unless given."""
    total = tensor.masked_fill(~mask, 0.0).sum()
    return total / (mask.sum().clamp_min(1) if count is None else count)


def _squared_error(value: Tensor, target: Tensor, anchor: Tensor, clip: float) -> Tensor:
    clipped = anchor + (value - anchor).clamp(-clip, clip)
    return torch.max((value - target).square(), (clipped - target).square())
