"""Small things that encoders, cores and heads share."""

import math
from typing import TypeVar

from torch import nn

TRUNK_GAIN = math.sqrt(2)
POLICY_GAIN = 0.01
VALUE_GAIN = 1.0

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}

Layer = TypeVar("Layer", nn.Linear, nn.Conv1d, nn.Conv2d)


def orthogonal(layer: Layer, gain: float) -> Layer:
    """Gives a layer orthogonal weights and a bias of zeros, and returns it."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def module_name(key: str) -> str:
    """Name of the submodule for a key or path of a tree.

    The prefix keeps clear of `nn.Module`'s own attributes (Minecraft has an action `forward`); torch allows no dots.
    """
    return "key_" + key.replace("%", "%25").replace(".", "%2e")
