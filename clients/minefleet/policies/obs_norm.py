"""Observations in units in which each of their numbers has mean 0 and standard deviation 1.

The learner takes the steps of an iteration into the statistics after it has trained on them and before it publishes. So
the statistics of a version are part of it as its parameters are: actors, the parity probe and the first update, whose
ratio is 1 on what the newest version played, all see the same.
"""

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


class RunningMoments(nn.Module):
    """Mean and variance of all rows that were ever taken in, per element, merged batch by batch.

        δ = m_b - μ        n' = n + n_b        μ ← μ + δ n_b / n'        σ² ← (n σ² + n_b v_b + δ² n n_b / n') / n'

    n_b, m_b and v_b are number, mean and variance of the rows of a batch.

    Chan, Golub and LeVeque 1979, https://doi.org/10.1007/978-3-642-51461-6_3, eq. 2.1.
    """

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
    def update(self, rows: Tensor) -> None:
        """Takes in rows [N, *shape]; those that are not finite throughout are left out."""
        rows = rows[rows.isfinite().reshape(len(rows), self.mean.numel()).all(1)].double()
        if len(rows) == 0:
            return
        total = self.count + len(rows)
        share = len(rows) / total
        shift = rows.mean(0) - self.mean
        spread = rows.var(0, correction=0) - self.variance
        self.mean += share * shift
        self.variance += share * spread + share * (1 - share) * shift.square()
        self.count.copy_(total)


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

    def update(self, obs: Tree) -> None:
        """Takes a tree of [N, ...], without padding, into the statistics."""
        leaves = flatten(obs)
        for path, moments in self._items():
            moments.update(leaves[path])

    def _items(self) -> list[tuple[str, RunningMoments]]:
        return list(zip(self.paths, self.moments, strict=True))  # type: ignore[arg-type]  # All are RunningMoments.
