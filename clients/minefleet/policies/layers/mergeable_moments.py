"""Number, mean and spread of rows, in pieces that merge: of micro-batches, of iterations, of ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    """Moments of rows [N, *shape]; float64."""

    count: Tensor
    """[] N; may be 0, and then the others are 0 too."""
    mean: Tensor
    """[*shape]."""
    spread: Tensor
    """[*shape], Σ (x - mean)²."""

    @property
    def variance(self) -> Tensor:
        """[*shape], not corrected for N; 0 of no rows."""
        return self.spread / self.count.clamp_min(1)


@torch.no_grad()
def moments_of(rows: Tensor) -> Moments:
    """The moments of rows [N, *shape], N >= 0."""
    rows = rows.double()
    mean = rows.sum(0) / max(len(rows), 1)
    return Moments(
        count=torch.tensor(float(len(rows)), dtype=torch.float64, device=rows.device),
        mean=mean,
        spread=(rows - mean).square().sum(0),
    )


@torch.no_grad()
def merge(parts: Sequence[Moments]) -> Moments:
    """The moments of all rows of the parts, of which there is at least one.

        n = Σ nₖ        μ = Σ nₖ μₖ / n        S = Σ Sₖ + nₖ (μₖ - μ)²

    Chan, Golub and LeVeque 1979, https://doi.org/10.1007/978-3-642-51461-6_3, eq. 2.1, for any number of parts.
    """
    if len(parts) == 1:
        return parts[0]
    counts = torch.stack([part.count for part in parts])
    weights = counts.view(-1, *[1] * parts[0].mean.ndim)
    means = torch.stack([part.mean for part in parts])
    mean = (weights * means).sum(0) / counts.sum().clamp_min(1)
    spread = torch.stack([part.spread for part in parts]).sum(0) + (weights * (means - mean).square()).sum(0)
    return Moments(count=counts.sum(), mean=mean, spread=spread)
