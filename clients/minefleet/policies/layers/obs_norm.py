"""Normalises observations, floats by element and images by channel: mean 0, standard deviation 1.

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
from minefleet.policies.layers.action_mask_in_observation import without_mask
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

    def moments_of(self, rows: Tensor) -> Moments:
        """The moments of those rows [N, *shape] that are finite throughout."""
        return moments_of(finite(rows))

    @torch.no_grad()
    def absorb(self, rows: Moments) -> None:
        """Takes in rows by their moments."""
        if rows.count == 0:
            return
        known = Moments(count=self.count, mean=self.mean, spread=self.variance * self.count)
        merged = merge([known, rows])
        for buffer, tensor in ((self.count, merged.count), (self.mean, merged.mean), (self.variance, merged.variance)):
            buffer.copy_(tensor)


class ImageMoments(RunningMoments):
    """Mean and variance of all pixels that were ever taken in, per channel; bytes are / 255, `count` is of pixels."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape[-1:])

    def forward(self, rows: Tensor) -> Tensor:
        """Normalises and clips images of bytes [N, H, W, C]; float32. Before the first update they are in [0, 1]."""
        scale, width = (self.variance + MIN_VARIANCE).rsqrt(), rows.shape[2]
        factor, offset = (channels.float().repeat(width) for channels in (scale / 255, self.mean * scale))
        lines = rows.flatten(2) * factor  # Twice as fast as pixel by pixel.
        return lines.sub_(offset).clamp_(-MAX_NORMALIZED, MAX_NORMALIZED).view(rows.shape)

    def moments_of(self, rows: Tensor) -> Moments:
        """The moments of all pixels of images [N, H, W, C]; each image's by itself in float32, then in float64."""
        count, _, width, channels = rows.shape
        lines = rows.flatten(2) / 255
        means = lines.mean(1).view(count, width, channels).mean(1)
        squares = lines.sub_(means.repeat(1, width)[:, None]).square_()
        images, pixels = moments_of(means), math.prod(rows.shape[1:3])
        return Moments(
            count=images.count * pixels,
            mean=images.mean,
            spread=images.spread * pixels + squares.sum(1).view(count, width, channels).double().sum((0, 1)),
        )


class ObsNorm(nn.Module):
    """Normalises a tree of observations; what it does not normalise passes unchanged.

    Args:
        obs: Tree of `Leaf`.
        floats: Normalise the boxes of floats.
        pixels: Normalise the images of bytes [H, W, C].
    """

    def __init__(self, obs: Tree, *, floats: bool = True, pixels: bool = False) -> None:
        super().__init__()
        leaves: dict[str, Leaf] = flatten(without_mask(obs))
        kinds: dict[str, type[RunningMoments]] = {}
        for path, leaf in leaves.items():
            if floats and leaf.kind == "box" and leaf.dtype.startswith("float"):
                kinds[path] = RunningMoments
            elif pixels and leaf.is_image:
                kinds[path] = ImageMoments
        self.paths = tuple(kinds)
        self.moments = nn.ModuleList([kind(leaves[path].shape) for path, kind in kinds.items()])

    def forward(self, obs: Tree) -> Tree:
        """The same tree of [N, ...]; what is normalised is float32 in it."""
        leaves = flatten(obs)
        for path, moments in self._items():
            leaves[path] = moments(leaves[path])
        return unflatten(leaves)

    @torch.no_grad()
    def moments_of(self, pieces: Iterable[Tree]) -> list[Moments]:
        """The moments of each normalised leaf in trees of [N, ...] without padding, all pieces as one batch."""
        sums = [[moments_of(moments.mean.new_zeros(0, *moments.mean.shape))] for _, moments in self._items()]
        for piece in pieces:
            leaves = flatten(piece)
            for known, (path, moments) in zip(sums, self._items(), strict=True):
                known[:] = [merge([*known, moments.moments_of(leaves[path])])]
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
