"""How the weights of a policy lie in memory that computes few rows at a time, on a CPU, and is not trained."""

from typing import Protocol, runtime_checkable

import torch
from torch import nn

from minefleet.policies.dense import by_columns


@runtime_checkable
class Packable(Protocol):
    """A layer that may keep a copy of its weights as its products want them."""

    def pack(self) -> None:
        """Makes the copy anew."""


def lay_out(policy: nn.Module) -> None:
    """Lays matrices out by columns, and the weights of convolutions by pixels, and packs the layers that can be packed.

    What is computed is the same. New weights are copied into the old ones' place, and packed.
    """
    for module in policy.modules():
        if isinstance(module, nn.Conv2d):
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # Its stub lacks it.
        elif isinstance(module, nn.Linear | nn.GRU):
            for parameter in module.parameters(recurse=False):
                if parameter.ndim == 2:  # A matrix.
                    parameter.data = by_columns(parameter.data)
    policy.register_load_state_dict_post_hook(lambda *_: _pack(policy))  # type: ignore[no-untyped-call]
    _pack(policy)


def _pack(policy: nn.Module) -> None:
    for module in policy.modules():
        if isinstance(module, Packable):
            module.pack()
