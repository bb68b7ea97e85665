"""Layers one after another, whose weights may lie as oneDNN wants them.

On a CPU oneDNN copies the weights of a layer into blocks of its own in every call, a ReLU is a pass of its own, and
torch does as much around a layer as in some of them. For few rows and cold caches that is up to a third of it. Where
weights change rarely, as an actor's, they are copied once, and what there is to do is found out once.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from minefleet.policies.dense import MULTIPLY, Dense, is_as_written, is_plain, onednn, packed

Pass = Callable[[Tensor], Tensor]

_CONVOLVE = onednn("_convolution_pointwise")


class Stack(nn.Sequential):
    """`torch.nn.Sequential`, with the same parameters. Packed it computes float32 on a CPU with fewer calls."""

    passes: tuple[Pass, ...] = ()
    """What the layers compute, with packed weights."""

    def pack(self) -> None:
        """Packs the weights as they are now. From then on there is no gradient, and no hook of a layer is called."""
        layers, passes = [*self], []
        while layers:
            layer = layers.pop(0)
            is_rectified = bool(layers) and isinstance(layers[0], nn.ReLU)
            fused = _fused(layer, "relu" if is_rectified else "none")
            passes.append(fused or layer.forward)
            if fused is not None and is_rectified:
                del layers[0]
        self.passes = tuple(passes)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # As torch names it.
        """What the last layer makes of what the one before it made, and so on."""
        if not self.passes or not is_as_written():
            return super().forward(input)  # type: ignore[no-untyped-call, no-any-return]  # torch's has no types.
        for each in self.passes:
            input = each(input)  # noqa: A001  # As torch names it.
        return input


def _fused(layer: nn.Module, activation: str) -> Pass | None:
    """A layer and what oneDNN calls the activation after it, with packed weights; None where that gains nothing."""
    if isinstance(layer, nn.Conv2d) and _CONVOLVE is not None and is_plain(layer.weight):
        return _convolution(layer, activation)
    if isinstance(layer, Dense) and (weight := packed(layer.weight)) is not None:
        bias = layer.bias
        return lambda rows: MULTIPLY(rows, weight, bias, activation, [], "")
    return None


def _convolution(layer: nn.Conv2d, activation: str) -> Pass:
    geometry = layer.padding, layer.stride, layer.dilation, layer.groups
    weight, bias = torch.ops.mkldnn._reorder_convolution_weight(layer.weight.detach(), *geometry), layer.bias
    return lambda images: _CONVOLVE(images, weight, bias, *geometry, activation, [], "")
