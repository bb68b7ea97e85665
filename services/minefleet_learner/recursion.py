"""The recursion that advantage estimators share, backwards in time.

Shape legend: B = rows in the batch, T = steps in a row.
"""

import torch
from torch import Tensor


@torch.no_grad()
def accumulate(term: Tensor, decay: Tensor, stop: Tensor) -> Tensor:
    """Computes xₜ = termₜ + decayₜ (1 - stopₜ) xₜ₊₁; behind the end of a row, x is 0.

    Args:
        term: [B, T] float.
        decay: Float that broadcasts to [B, T].
        stop: [B, T] bool, nothing comes over from the step behind, not even NaN.

    Returns:
        [B, T].
    """
    # Time first and contiguous: then each step reads and writes one piece of memory.
    terms, stops = term.T.contiguous(), stop.T.contiguous()
    decays = decay.expand_as(term).T.contiguous()
    total, carry = torch.empty_like(terms), torch.zeros_like(terms[:1])[0]
    for t in reversed(range(len(terms))):
        carry = torch.addcmul(terms[t], decays[t], carry.masked_fill(stops[t], 0.0), out=total[t])
    return total.T.contiguous()
