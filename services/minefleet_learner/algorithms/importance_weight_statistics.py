"""Statistics of importance weights: how much likelier one policy is than another to take the same actions.

Shape legend: B = fragments, T = steps.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Sums over importance weights, from which their statistics follow; those of several batches add up."""

    steps: float = 0.0
    total: float = 0.0
    """Σ w."""
    squares: float = 0.0
    """Σ w²."""
    largest: float = 0.0

    @property
    def mean(self) -> float:
        """Mean weight: near 1 where the weights are right and the steps many."""
        return self.total / self.steps if self.steps else math.nan

    @property
    def effective_sample_size(self) -> float:
        """(Σ w)² / (n Σ w²), the share of the steps that as good an estimate needs without weights, in (0, 1].

        Kong 1992, "A note on importance sampling using standardized weights".
        """
        return self.total**2 / (self.steps * self.squares) if self.steps else math.nan


def weigh(log_ratio: Tensor, mask: Tensor, log_ratio_range: float) -> Weights:
    """Sums the weights exp(log_ratio) over a mask.

    Args:
        log_ratio: [B, T] float.
        mask: [B, T] bool.
        log_ratio_range: Logarithms are clamped to ± this.
    """
    weight = log_ratio[mask].clamp(-log_ratio_range, log_ratio_range).double().exp()
    largest = weight.max() if len(weight) else weight.new_zeros(())
    total, squares, peak = torch.stack((weight.sum(), weight.square().sum(), largest)).tolist()
    return Weights(steps=len(weight), total=total, squares=squares, largest=peak)
