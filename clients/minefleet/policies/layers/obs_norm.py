"""Observations in units in which each of their numbers has mean 0 and standard deviation 1.

The learner takes the steps of an iteration into the statistics after it has trained on them and before it publishes. So
the statistics of a version are part of it as its parameters are: actors, the parity probe and the first update, whose
ratio is 1 on what the newest version played, all see the same.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from minefleet.core.schema import Leaf
from minefleet.core.tree import Tree, flatten, unflatten
from minefleet.policies.layers.action_mask_leaf import without_mask
from minefleet.policies.layers.mergeable_moments import Moments, merge, moments_of

MAX_NORMALIZED = 10.0
"""Normalised numbers are clipped to ± this."""
MIN_VARIANCE = 1e-8
"""Added to variances, so that what never changed is not divided by 0; in squared units of the observation."""


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
        scale = (self.variance + MIN_VARIANCE).rsqrt()
        normal = (rows.float() - self.mean.float()) * scale.float()
        return normal.clamp(-MAX_NORMALIZED, MAX_NORMALIZED)

    @torch.no_grad()
    def absorb(self, rows: Moments) -> None:
        """Takes in rows by their moments."""
        if rows.count == 0:
            return
        known = Moments(count=self.count, mean=self.mean, spread=self.variance * self.count)
        merged = merge([known, rows])
        for buffer, tensor in ((self.count, merged.count), (self.mean, merged.mean), (self.variance, merged.variance)):
            buffer.copy_(tensor)


def floats_of(obs: Tree) -> dict[str, Leaf]:
    """The boxes of floats in a tree of `Leaf`, by path."""
    leaves: dict[str, Leaf] = flatten(without_mask(obs))
    return {path: leaf for path, leaf in leaves.items() if leaf.kind == "box" and leaf.dtype.startswith("float")}


class ObsNorm(nn.Module):
    """Normalises the boxes of floats in a tree of observations; what else there is passes unchanged.

    Args:
        obs: Tree of `Leaf`.
    """

    def __init__(self, obs: Tree) -> None:
        super().__init__()
        floats = floats_of(obs)
        self.paths = tuple(floats)
        self.moments = nn.ModuleList([RunningMoments(leaf.shape) for leaf in floats.values()])

    def forward(self, obs: Tree) -> Tree:
        """The same tree of [N, ...], its floats normalised."""
        leaves = flatten(obs)
        for path, moments in self._items():
            leaves[path] = moments(leaves[path])
        return unflatten(leaves)

    @torch.no_grad()
    def moments_of(self, pieces: Iterable[Tree]) -> list[Moments]:
        """The moments of each box of floats in trees of [N, ...] without padding, all pieces as one batch."""
        sums = [[moments_of(moments.mean.new_zeros(0, *moments.mean.shape))] for _, moments in self._items()]
        for piece in pieces:
            leaves = flatten(piece)
            for known, (path, _) in zip(sums, self._items(), strict=True):
                known[:] = [merge([*known, moments_of(finite(leaves[path]))])]
        return [one for (one,) in sums]

    def absorb(self, obs: Sequence[Moments]) -> None:
        """Takes moments, in the order of `moments_of`, into the statistics."""
        for (_, moments), taken in zip(self._items(), obs, strict=True):
            moments.absorb(taken)

    def _items(self) -> list[tuple[str, RunningMoments]]:
        return list(zip(self.paths, self.moments, strict=True))  # type: ignore[arg-type]  # All are RunningMoments.


def finite(rows: Tensor) -> Tensor:
    """Of rows [N, *shape] those that are finite throughout."""
    return rows[rows.isfinite().reshape(len(rows), math.prod(rows.shape[1:])).all(1)]
