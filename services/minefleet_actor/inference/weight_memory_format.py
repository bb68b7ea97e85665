"""Lays a policy's weights out in memory for few rows at a time, on a CPU, without training."""

import torch
from torch import nn

from minefleet.policies.layers.onednn_linear import by_columns


def lay_out(policy: nn.Module) -> None:
    """Lays matrices out by columns, and the weights of convolutions by pixels. What is computed is the same.

    New weights are copied into the old ones' place, and so come to lie as they did.
    """
    for module in policy.modules():
        if isinstance(module, nn.Conv2d):
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # Its stub lacks it.
        elif isinstance(module, nn.Linear | nn.GRU):
            for parameter in module.parameters(recurse=False):
                if parameter.ndim == 2:  # A matrix.
                    parameter.data = by_columns(parameter.data)
