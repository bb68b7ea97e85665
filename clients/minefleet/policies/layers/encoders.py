"""Encoders: one step's observation to features.

Shape legend: N = steps (batch and time flattened), F = features. An encoder is any module from a tree of [N, ...] as
the schema says (pixels are bytes, or floats where they are normalised; categories are integers) to [N, F].
"""

from collections.abc import Callable, Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn

from minefleet.config import PolicyConfig
from minefleet.core.errors import ConfigError
from minefleet.core.schema import Leaf
from minefleet.core.tree import Tree, flatten, tree_map
from minefleet.policies.layers.action_mask_in_observation import without_mask
from minefleet.policies.layers.layer_utils import ACTIVATIONS, TRUNK_GAIN, module_name, orthogonal
from minefleet.policies.layers.onednn_linear import Dense
from minefleet.policies.layers.text import TextFeatures

ENCODE_CHUNK_STEPS = 256
"""Steps that a CPU encodes at a time: what the layers make of more leaves its caches."""


def by_parts(encode: Callable[[Tree], Tensor], steps: Tree) -> Tensor:
    """Encodes a tree of [N, ...] to [N, F], on a CPU `ENCODE_CHUNK_STEPS` steps at a time."""
    leaf = next(iter(flatten(steps).values()))
    if leaf.device.type != "cpu" or len(leaf) <= ENCODE_CHUNK_STEPS or torch.compiler.is_compiling():
        return encode(steps)
    parts = (slice(start, start + ENCODE_CHUNK_STEPS) for start in range(0, len(leaf), ENCODE_CHUNK_STEPS))
    return torch.cat([encode(tree_map(lambda leaf, at=part: leaf[at], steps)) for part in parts])


class Pixels(nn.Module):
    """Images [N, H, W, C] to floats [N, C, H, W] in channels-last memory; bytes become [0, 1], floats stay."""

    def forward(self, image: Tensor) -> Tensor:
        """[N, C, H, W] float32."""
        pixels = image.permute(0, 3, 1, 2)
        return pixels if pixels.is_floating_point() else pixels.float().div_(255)


class Numbers(nn.Module):
    """Numbers [N, *shape] to floats [N, size]; bytes are scaled to [0, 1]."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, numbers: Tensor) -> Tensor:
        """[N, size] float32."""
        vector = numbers.reshape(len(numbers), -1).float()
        return vector if self.scale == 1 else vector * self.scale


class OneHot(nn.Module):
    """Categories [N] or [N, n] to one-hot floats, concatenated: [N, sum of categories]."""

    element: Tensor
    category: Tensor

    def __init__(self, categories: tuple[int, ...]) -> None:
        super().__init__()
        element = [index for index, count in enumerate(categories) for _ in range(count)]
        category = [index for count in categories for index in range(count)]
        self.register_buffer("element", torch.tensor(element), persistent=False)
        self.register_buffer("category", torch.tensor(category), persistent=False)

    def forward(self, categories: Tensor) -> Tensor:
        """[N, sum of categories] float32."""
        return (categories.reshape(len(categories), -1)[:, self.element] == self.category).float()


class DictEncoder(nn.Module):
    """One encoder per leaf, concatenated, then a dense layer."""

    def __init__(self, encoders: Mapping[str, nn.Module], dense: nn.Module) -> None:
        super().__init__()
        self.paths = tuple(encoders)
        self.encoders = nn.ModuleDict({module_name(path): encoder for path, encoder in encoders.items()})
        self.dense = dense

    def forward(self, obs: Tree) -> Tensor:
        """[N, F]."""
        leaves = flatten(obs)
        features = [encoder(leaves[path]) for path, encoder in zip(self.paths, self.encoders.values(), strict=True)]
        return self.dense(torch.cat(features, -1))  # type: ignore[no-any-return]  # A module's result has no type.


def encoder(obs: Tree, config: PolicyConfig) -> nn.Module:
    """Makes the encoder for a tree of `Leaf`: [N, ...] to [N, hidden_size]. It does not look at a mask of actions.

    Raises:
        ConfigError: If a leaf cannot be encoded, or there are none.
    """
    leaves: dict[str, Leaf] = flatten(without_mask(obs))
    if not leaves:
        raise ConfigError("the observation is an empty dict: there is nothing to see")
    encoders = {path: _leaf_encoder(path, leaf, config) for path, leaf in leaves.items()}
    if "" in encoders:
        return encoders[""]
    return DictEncoder(encoders, _dense([len(encoders) * config.hidden_size, config.hidden_size], config))


def _leaf_encoder(path: str, leaf: Leaf, config: PolicyConfig) -> nn.Module:
    if leaf.is_image:
        return _convolutions(path, leaf, config)
    size, inputs = _inputs(leaf)
    if size == 0:
        raise ConfigError(f"the observation {path!r} has shape {leaf.shape}: there is nothing to see")
    return nn.Sequential(inputs, *_dense([size] + config.hidden_layers * [config.hidden_size], config))


def _inputs(leaf: Leaf) -> tuple[int, nn.Module]:
    """Layers that turn a leaf without pixels into input of the dense layers, and its size."""
    size = leaf.zeros().size
    if leaf.kind == "text" and size:
        features = TextFeatures(size)
        return features.size, features
    if leaf.categories:
        return sum(leaf.categories), OneHot(leaf.categories)
    return size, Numbers(1 / 255 if leaf.dtype == "uint8" else 1.0)


def _convolutions(path: str, leaf: Leaf, config: PolicyConfig) -> nn.Module:
    height, width, depth = leaf.shape
    least = _least_edge(config)
    if min(height, width) < least:
        raise ConfigError(
            f"the observation {path!r} has shape {leaf.shape}; bytes of three axes are images [height, width, "
            f"channels], and the convolutions need at least {least} x {least}: give larger ones, or a "
            "policy.generator; if it is no image, make the environment leave it out, or show it in another dtype"
        )
    modules: list[nn.Module] = [Pixels()]
    for channels, kernel, stride in zip(config.conv_channels, config.conv_kernels, config.conv_strides, strict=True):
        modules += [orthogonal(nn.Conv2d(depth, channels, kernel, stride), TRUNK_GAIN), nn.ReLU(inplace=True)]
        height, width, depth = (height - kernel) // stride + 1, (width - kernel) // stride + 1, channels
    return nn.Sequential(*modules, nn.Flatten(), *_dense([height * width * depth, config.hidden_size], config))


def _least_edge(config: PolicyConfig) -> int:
    """Height and width of the smallest image of which the last convolution still makes something."""
    edge = 1
    for kernel, stride in reversed(list(zip(config.conv_kernels, config.conv_strides, strict=True))):
        edge = (edge - 1) * stride + kernel
    return edge


def _dense(sizes: list[int], config: PolicyConfig) -> nn.Sequential:
    modules: list[nn.Module] = []
    for before, after in pairwise(sizes):
        modules += [orthogonal(Dense(before, after), TRUNK_GAIN), ACTIVATIONS[config.activation]()]
    return nn.Sequential(*modules)
