"""The layer that VPT is made of: normalise, transform, rectify; its weights have rows of a given length.

`FanInInitReLULayer` of `lib/util.py` in OpenAI's Video-Pre-Training. Its docstring says that it normalises after the
layer; the code, and with it the published weights, normalises before.
"""

from typing import TypeVar

import torch
from torch import Tensor, nn

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def fan_in(layer: Layer, scale: float) -> Layer:
    """Gives each output's weights the norm `scale` and a bias of 0, and returns the layer."""
    with torch.no_grad():
        layer.weight.mul_(scale / layer.weight.flatten(1).norm(dim=1).view(-1, *[1] * (layer.weight.ndim - 1)))
        if layer.bias is not None:
            layer.bias.zero_()
    return layer


class NormedLayer(nn.Module):
    """ReLU(layer(norm(x)))."""

    def __init__(self, norm: nn.Module, layer: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Of the shape that the layer gives."""
        return self.layer(self.norm(x)).relu_()  # type: ignore[no-any-return]  # A module's result has no type.


def normed_linear(features: int, size: int, scale: float = 1.0) -> NormedLayer:
    """[..., features] to [..., size]."""
    return NormedLayer(nn.LayerNorm(features), fan_in(nn.Linear(features, size, bias=False), scale))


def normed_conv(channels: int, size: int, scale: float = 1.0) -> NormedLayer:
    """[N, channels, H, W] to [N, size, H, W], by 3 x 3."""
    return NormedLayer(nn.GroupNorm(1, channels), fan_in(nn.Conv2d(channels, size, 3, padding=1, bias=False), scale))
