"""PopArt: the value head predicts in units in which its targets have mean 0 and standard deviation 1."""

import torch
from torch import Tensor, nn

from minefleet.policies.layers.mergeable_moments import Moments


class ValueNorm(nn.Module):
    """Running mean and standard deviation of value targets, and the change of units they define.

        μ ← μ + αₖ (mₖ - μ)        σ² ← σ² + αₖ (vₖ - σ²) + αₖ (1 - αₖ) (mₖ - μ)²        αₖ = (1 - β) / (1 - βᵏ)

    mₖ and vₖ are mean and variance of the targets of the k-th update. These are the debiased exponential moving
    averages of the first two moments, in a form that does not cancel; the first update replaces the statistics.

    van Hasselt et al. 2016, https://arxiv.org/abs/1602.07714, §2.1 and §2.2.

    Args:
        beta: β, share of the statistics that an update keeps, in [0, 1). The default remembers about 100 updates.
        min_std: Smallest σ, in reward units, so that constant targets are not blown up.
        enabled: Whether `update` does anything. A fresh norm that is never updated is the identity.
    """

    mean: Tensor
    variance: Tensor
    weight: Tensor
    """1 - βᵏ: how much of the statistics is data. 0 before the first update."""

    def __init__(self, *, beta: float = 0.99, min_std: float = 1e-3, enabled: bool = True) -> None:
        super().__init__()
        self.beta = beta
        self.min_std = min_std
        self.enabled = enabled
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("variance", torch.ones((), dtype=torch.float64))
        self.register_buffer("weight", torch.zeros((), dtype=torch.float64))

    @property
    def std(self) -> Tensor:
        """[] float64, standard deviation of the targets."""
        return self.variance.sqrt().clamp_min(self.min_std)

    def normalize(self, value: Tensor) -> Tensor:
        """Reward units to normalised units."""
        return (value - self.mean) / self.std

    def denormalize(self, value: Tensor) -> Tensor:
        """Normalised units to reward units."""
        return value * self.std + self.mean

    @torch.no_grad()
    def absorb(self, targets: Moments, value_layer: nn.Linear) -> None:
        """Takes targets into the statistics and rescales the layer so that its denormalised outputs stay the same.

        Args:
            targets: Of at least one target, all finite and none of them padding; in reward units.
            value_layer: The last layer of the value function; changed in place, so not between forward and backward.
        """
        if not self.enabled:
            return
        old_mean, old_std = self.mean.clone(), self.std
        self._move(targets)
        weight, bias = value_layer.weight, value_layer.bias
        weight.copy_(weight.double() * (old_std / self.std))
        bias.copy_((bias.double() * old_std + old_mean - self.mean) / self.std)

    def _move(self, targets: Moments) -> None:
        self.weight.lerp_(torch.ones_like(self.weight), 1 - self.beta)
        step = (1 - self.beta) / self.weight
        shift = targets.mean - self.mean
        spread = targets.variance - self.variance
        self.mean += step * shift
        self.variance += step * spread + step * (1 - step) * shift.square()
