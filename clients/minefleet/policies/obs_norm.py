"""Observations in units in which each of their numbers has mean 0 and standard deviation 1.

The learner takes the steps of an iteration into the statistics after it has trained on them and before it publishes. So
the statistics of a version are part of it as its parameters are: actors, the parity probe and the first update, whose
ratio is 1 on what the newest version played, all see the same.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from minefleet.errors import ConfigError
from minefleet.policies.masks import without_mask
from minefleet.schema import Leaf
from minefleet.tree import Tree, flatten, unflatten

LARGEST = 10.0
"""Normalised numbers are clipped to ± this."""
SMALLEST_VARIANCE = 1e-8
"""Added to variances, so that what never changed is not divided by 0; in squared units of the observation."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Number, mean and variance of some rows, per element; float64."""

    count: Tensor
    """[]. Where it is 0, mean and variance are 0."""
    mean: Tensor
    variance: Tensor

    @classmethod
    def none(cls, like: Tensor) -> "Moments":
        """Of no rows."""
        return cls(like.new_zeros(()), torch.zeros_like(like), torch.zeros_like(like))

    def merged(self, other: "Moments") -> "Moments":
        """Of the rows of both.

            δ = m_b - μ    n' = n + n_b    μ' = μ + δ n_b / n'    σ²' = (n σ² + n_b v_b + δ² n n_b / n') / n'

        n_b, m_b and v_b are those of `other`.

        Chan, Golub and LeVeque 1979, https://doi.org/10.1007/978-3-642-51461-6_3, eq. 2.1.
        """
        total = self.count + other.count
        share = other.count / total.clamp_min(1)
        shift, spread = other.mean - self.mean, other.variance - self.variance
        variance = self.variance + share * spread + share * (1 - share) * shift.square()
        return Moments(total, self.mean + share * shift, variance)


def moments_of(rows: Tensor) -> Moments:
    """The moments of rows [N, *shape]; those that are not finite throughout are left out."""
    rows = rows[rows.isfinite().reshape(len(rows), math.prod(rows.shape[1:])).all(1)].double()
    none = Moments.none(rows.new_zeros(rows.shape[1:]))
    if len(rows) == 0:
        return none
    return Moments(none.count + len(rows), rows.mean(0), rows.var(0, correction=0))


class RunningMoments(nn.Module):
    """Mean and variance of all rows that were ever taken in, per element."""

    mean: Tensor
    variance: Tensor
    count: Tensor
    """Rows taken in. 0 before the first update, where mean 0 and variance 1 stand for none."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, rows: Tensor) -> Tensor:
        """Normalises and clips rows [N, *shape]; float32."""
        scale = (self.variance + SMALLEST_VARIANCE).rsqrt()
        normal = (rows.float() - self.mean.float()) * scale.float()
        return normal.clamp(-LARGEST, LARGEST)

    @torch.no_grad()
    def absorb(self, moments: Moments) -> None:
        """Takes in rows of which the moments are known."""
        both = Moments(self.count, self.mean, self.variance).merged(moments)
        self.count.copy_(both.count)
        self.mean.copy_(both.mean)
        self.variance.copy_(both.variance)


class ObsNorm(nn.Module):
    """Normalises the boxes of floats in a tree of observations; what else there is passes unchanged.

    Args:
        obs: Tree of `Leaf`.

    Raises:
        ConfigError: If there are no floats.
    """

    def __init__(self, obs: Tree) -> None:
        super().__init__()
        leaves: dict[str, Leaf] = flatten(without_mask(obs))
        floats = {path: leaf for path, leaf in leaves.items() if leaf.kind == "box" and leaf.dtype.startswith("float")}
        if not floats:
            raise ConfigError(f"policy.normalize_obs is true, and none of {sorted(leaves)} is a box of floats")
        self.paths = tuple(floats)
        self.moments = nn.ModuleList([RunningMoments(leaf.shape) for leaf in floats.values()])

    def forward(self, obs: Tree) -> Tree:
        """The same tree of [N, ...], its floats normalised."""
        leaves = flatten(obs)
        for path, moments in self._items():
            leaves[path] = moments(leaves[path])
        return unflatten(leaves)

    @torch.no_grad()
    def absorb(self, pieces: Iterable[Tree]) -> None:
        """Takes trees of [N, ...], without padding, into the statistics: all pieces as one batch."""
        sums = [Moments.none(moments.mean) for _, moments in self._items()]
        for piece in pieces:
            leaves = flatten(piece)
            sums = [one.merged(moments_of(leaves[path])) for one, (path, _) in zip(sums, self._items(), strict=True)]
        for one, (_, moments) in zip(sums, self._items(), strict=True):
            moments.absorb(one)

    def _items(self) -> list[tuple[str, RunningMoments]]:
        return list(zip(self.paths, self.moments, strict=True))  # type: ignore[arg-type]  # All are RunningMoments.
