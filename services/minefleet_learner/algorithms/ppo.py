"""The PPO objective and the numbers that explain it.

Shape legend: B = fragments in the micro-batch, T = steps. Steps whose mask is False are padding: their content does not
matter, not even NaN, and no gradient reaches them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from minefleet.policies.layers.moments import Moments, moments_of
from minefleet_learner.algorithms.importance import capped
from minefleet_learner.algorithms.shapes import check_shapes


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


def ppo_loss(
    *,
    logp: Tensor,
    behaviour_logp: Tensor,
    advantage: Tensor,
    value: Tensor,
    value_target: Tensor,
    entropy: Tensor,
    mask: Tensor,
    clip: float,
    policy_coef: float = 1.0,
    value_coef: float = 0.5,
    entropy_coef: float = 0.0,
    anchor_value: Tensor | None = None,
    kl_reference: Tensor | None = None,
    rho: float = 0.0,
    proximal_logp: Tensor | None = None,
    weight_cap: float = math.inf,
    log_ratio_range: float = 50.0,
    count: float | None = None,
) -> PPOLoss:
    """Computes the clipped surrogate, the value loss, the entropy bonus and the pull towards a reference.

        ρₜ = π(aₜ|sₜ) / π_prox(aₜ|sₜ)        wₜ = min(π_prox(aₜ|sₜ) / μ(aₜ|sₜ), w̄)
        L  = -c_p E[wₜ min(ρₜ Âₜ, clip(ρₜ, 1-ε, 1+ε) Âₜ)] + c_v ½E[(V - V̂)²] - c_e E[H(π)] + ρ_KL E[KL(π ‖ π_ref)]

    μ is the behaviour policy: the one that acted, whose log-probabilities the actor recorded. π_prox is the proximal
    policy, from which one update may not go far; wₜ corrects for what it has moved since the step was acted, and has no
    gradient. Without a proximal policy the behaviour policy stands for it. With an anchor, the squared error is the
    larger of that of V and that of V kept within ±ε of the anchor.

    Schulman et al. 2017, https://arxiv.org/abs/1707.06347, eq. 7 and 9; with a proximal policy, Hilton et al. 2021,
    https://arxiv.org/abs/2110.00641, the decoupled clipped objective.

    Args:
        logp: [B, T] float, ln π(aₜ|sₜ) under the parameters being trained.
        behaviour_logp: [B, T] float, ln μ(aₜ|sₜ).
        advantage: [B, T] float, normalised if wanted.
        value: [B, T] float, V(sₜ) in normalised units.
        value_target: [B, T] float, V̂ₜ in normalised units.
        entropy: [B, T] float, of π in sₜ.
        mask: [B, T] bool, False at padding.
        clip: ε, > 0.
        policy_coef: c_p, >= 0; 0 while only the value is trained.
        value_coef: c_v, >= 0.
        entropy_coef: c_e, >= 0.
        anchor_value: [B, T] float, V(sₜ) before the update, in normalised units; None leaves the value unclipped.
        kl_reference: [B, T] float, KL(π ‖ π_ref) in sₜ; None without a reference.
        rho: ρ_KL, >= 0.
        proximal_logp: [B, T] float, ln π_prox(aₜ|sₜ); None for PPO as it was first published.
        weight_cap: w̄, > 0.
        log_ratio_range: ln ρₜ is clamped to ± this, > 0; steps beyond it have no gradient.
        count: Divisor of the means in the objective and its parts; None for the steps in this mask. Micro-batches whose
            gradients are added up take their total number of steps: then every step weighs alike, and parts add up.

    Returns:
        The objective and its parts.

    Raises:
        ValueError: If the tensors do not share one [B, T] shape.
    """
    anchor_value = value.detach() if anchor_value is None else anchor_value
    kl_reference = torch.zeros_like(logp) if kl_reference is None else kl_reference
    proximal_logp = behaviour_logp if proximal_logp is None else proximal_logp.detach()
    tensors = (
        logp,
        behaviour_logp,
        proximal_logp,
        advantage,
        value,
        value_target,
        entropy,
        anchor_value,
        kl_reference,
    )
    check_shapes(*tensors, mask)
    # Padding is blanked on entry: blanked only at the end, its NaNs would come back in the gradient as 0 · NaN.
    logp, behaviour_logp, proximal_logp, advantage, value, value_target, entropy, anchor_value, kl_reference = (
        tensor.masked_fill(~mask, 0.0) for tensor in tensors
    )
    full_log_ratio = logp - proximal_logp
    ratio = full_log_ratio.clamp(-log_ratio_range, log_ratio_range).exp()
    weight = capped(proximal_logp - behaviour_logp, weight_cap)
    surrogate = weight * torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    since_acted = (logp - behaviour_logp).clamp(-log_ratio_range, log_ratio_range)

    policy = -masked_mean(surrogate, mask, count)
    value_loss = 0.5 * masked_mean(_squared_error(value, value_target, anchor_value, clip), mask, count)
    mean_entropy = masked_mean(entropy, mask, count)
    mean_kl = masked_mean(kl_reference, mask, count)
    return PPOLoss(
        total=policy_coef * policy + value_coef * value_loss - entropy_coef * mean_entropy + rho * mean_kl,
        policy=policy.detach(),
        value=value_loss.detach(),
        entropy=mean_entropy.detach(),
        kl_reference=mean_kl.detach(),
        approx_kl=masked_mean(since_acted.exp() - 1 - since_acted, mask).detach(),
        clip_fraction=masked_mean(((ratio - 1).abs() > clip).to(ratio.dtype), mask),
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
