"""Convolutions whose weights may lie as oneDNN wants them.

On a CPU torch convolves by oneDNN, which copies the weights into a layout of its own in every call. For few images and
cold caches that is up to a third of the time. Where weights change rarely, as an actor's, they are copied once.

Shape legend: N = images, C = channels, H, W = height and width.
"""

import torch
from torch import Tensor, nn

from minefleet.policies.dense import is_plain, onednn

_CONVOLVE = onednn("_convolution_pointwise")


class Convolution(nn.Conv2d):
    """`torch.nn.Conv2d`, with the same parameters; padding is by zeros, in numbers."""

    packed: Tensor | None = None

    def pack(self) -> None:
        """Packs the weights as they are now. From then on the layer has no gradient."""
        if _CONVOLVE is None or not is_plain(self.weight):
            self.packed = None
            return
        geometry = self.padding, self.stride, self.dilation, self.groups
        self.packed = torch.ops.mkldnn._reorder_convolution_weight(self.weight.detach(), *geometry)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # As torch names it.
        """[N, C, H, W] to [N, C', H', W']."""
        if self.packed is None or not is_plain(input):
            return super().forward(input)
        geometry = self.padding, self.stride, self.dilation, self.groups
        return _CONVOLVE(input, self.packed, self.bias, *geometry, "none", [], "")  # type: ignore[no-any-return]  # An operation has no types.
