"""The distributions that actions are drawn from, as pure functions on tensors.

Shape legend: `...` = any leading axes, here always [B, T]; K = categories. `torch.distributions` gives the same numbers
and is their test; it is several times slower on the small batches of an actor.
"""

import math

import torch
from torch import Tensor

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def without(logits: Tensor, forbidden: Tensor) -> Tensor:
    """Takes categories out: their probability is exactly 0, their logit finite, so that 0 · ln 0 is 0 and not NaN.

    Args:
        logits: [..., K].
        forbidden: [..., K] bool. Where all are, they are all alike.
    """
    return logits.masked_fill(forbidden, torch.finfo(logits.dtype).min / 2)


def categorical_sample(logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draws a category by inverting the cumulative distribution: one random number for each, however large K is.

    Args:
        logits: [..., K], unnormalised log-probabilities.
        generator: Source of the random numbers, on the device of the logits; None for torch's own.

    Returns:
        [...] int64 in [0, K). A category of probability 0 is never drawn.
    """
    probability = logits.float().softmax(-1)
    cumulative = probability.cumsum(-1)
    # Rounding may leave the total below 1; a threshold that reaches it would draw a category that is not there.
    total = cumulative[..., -1:]
    threshold = total * torch.rand(total.shape, generator=generator, device=total.device)
    category = (cumulative <= threshold).sum(-1)
    return category if category.device.type == "cpu" else possible(category, probability)


def possible(category: Tensor, probability: Tensor) -> Tensor:
    """Replaces categories of probability 0 by the likeliest. A sum in parallel may rise by rounding where one stands.

    Args:
        category: [...] int64.
        probability: [..., K].

    Returns:
        [...] int64.
    """
    chance = probability.gather(-1, category.unsqueeze(-1)).squeeze(-1)
    return torch.where(chance > 0, category, probability.argmax(-1))


def categorical_logp(logits: Tensor, category: Tensor) -> Tensor:
    """Log-probability of `category` [...] int64 under `logits` [..., K]."""
    return logits.log_softmax(-1).gather(-1, category.unsqueeze(-1)).squeeze(-1)


def categorical_entropy(logits: Tensor) -> Tensor:
    """H = -Σ p ln p of `logits` [..., K], in nats."""
    logp = logits.log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)


def categorical_kl(logits: Tensor, other: Tensor) -> Tensor:
    """KL(p ‖ q) = Σ p (ln p - ln q) of `logits` [..., K] against `other` [..., K], in nats."""
    logp = logits.log_softmax(-1)
    return (logp.exp() * (logp - other.log_softmax(-1))).sum(-1)


def gaussian_sample(mean: Tensor, log_std: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draws from N(mean, exp(log_std)²), elementwise."""
    noise = torch.randn(mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)
    return mean + log_std.exp() * noise


def gaussian_logp(mean: Tensor, log_std: Tensor, value: Tensor) -> Tensor:
    """Log-density of `value` under N(mean, exp(log_std)²), elementwise."""
    return -0.5 * ((value - mean) * (-log_std).exp()).square() - log_std - HALF_LOG_2PI


def gaussian_entropy(log_std: Tensor) -> Tensor:
    """H = ½ + ½ ln 2π + ln σ, elementwise, in nats."""
    return log_std + (0.5 + HALF_LOG_2PI)


def gaussian_kl(mean: Tensor, log_std: Tensor, other_mean: Tensor, other_log_std: Tensor) -> Tensor:
    """KL(p ‖ q) = ln(σ_q / σ_p) + (σ_p² + (μ_p - μ_q)²) / 2σ_q² - ½, elementwise, in nats."""
    spread = (2 * log_std).exp() + (mean - other_mean).square()
    return other_log_std - log_std + 0.5 * spread * (-2 * other_log_std).exp() - 0.5
