"""The recursion that advantage estimators share, backwards in time.

Shape legend: B = rows in the batch, T = steps in a row.
"""

import torch
from torch import Tensor


def discounts(discount: float, duration: Tensor | None, reward: Tensor) -> Tensor | float:
    """γ to the power of each step's duration, in the dtype of `reward`; γ itself where every duration is one."""
    return discount if duration is None else torch.full_like(reward, discount) ** duration


@torch.no_grad()
def accumulate(term: Tensor, decay: Tensor | float, stop: Tensor) -> Tensor:
    """Computes xₜ = termₜ + decayₜ (1 - stopₜ) xₜ₊₁; behind the end of a row, x is 0.

    Each pass doubles the span of steps that a sum covers, so that there are log₂ T passes over all, and not T over one
    column each:

        sum over [t, t + 2n) = sum over [t, t + n) + product of decays over [t, t + n) · sum over [t + n, t + 2n)

    Hillis and Steele 1986, https://doi.org/10.1145/7902.7903.

    Args:
        term: [B, T] float.
        decay: Float, or floats that broadcast to [B, T].
        stop: [B, T] bool, nothing comes over from the step behind, not even NaN.

    Returns:
        [B, T].
    """
    decay = torch.as_tensor(decay, dtype=term.dtype, device=term.device)
    total, product = term.clone(), decay.expand_as(term).masked_fill(stop, 0.0)
    span, length = 1, term.shape[1]
    while span < length:
        product = product[:, : length - span]
        total[:, :-span] += (product * total[:, span:]).masked_fill(product == 0, 0.0)
        product = product[:, :-span] * product[:, span:]
        span *= 2
    return total
