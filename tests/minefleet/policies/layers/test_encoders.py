"""Encoders: every kind of observation becomes features."""

import pytest
import torch

from minefleet.config import PolicyConfig
from minefleet.core.errors import ConfigError
from minefleet.core.schema import Leaf, zeros
from minefleet.core.tree import Tree, tree_map
from minefleet.policies.layers import encoders
from minefleet.policies.layers.encoders import Numbers, OneHot, encoder

PIXELS = Leaf(kind="box", shape=(64, 64, 3), dtype="uint8", low=0, high=255)
SMALLEST = Leaf(kind="box", shape=(36, 40, 1), dtype="uint8", low=0, high=255)
VECTOR = Leaf(kind="box", shape=(4,), dtype="float32")
MATRIX = Leaf(kind="box", shape=(3, 5), dtype="float32")
SCALAR = Leaf(kind="box", shape=(), dtype="float32")
BYTES = Leaf(kind="box", shape=(128,), dtype="uint8", low=0, high=255)
DISCRETE = Leaf(kind="discrete", shape=(), dtype="int64", categories=(6,))
MULTI = Leaf(kind="multi_discrete", shape=(3,), dtype="int64", categories=(2, 7, 4))
NESTED = {"image": PIXELS, "forward": DISCRETE, "body": {"pos.xyz": VECTOR, "keys": MULTI}}
TREES = {
    "pixels": PIXELS,
    "smallest": SMALLEST,
    "vector": VECTOR,
    "matrix": MATRIX,
    "scalar": SCALAR,
    "bytes": BYTES,
    "discrete": DISCRETE,
    "multi_discrete": MULTI,
    "nested": NESTED,
}
CONFIG = PolicyConfig(hidden_size=32, conv_channels=[4, 8, 8])
NO_LAYERS: dict[str, list[int]] = {"conv_channels": [], "conv_kernels": [], "conv_strides": []}


def random_obs(tree: Tree, steps: int) -> Tree:
    generator = torch.Generator().manual_seed(0)

    def draw(leaf: Leaf) -> torch.Tensor:
        if leaf.dtype == "float32":
            return torch.randn(steps, *leaf.shape, generator=generator)
        high = min(leaf.categories) if leaf.categories else 256
        dtype = getattr(torch, leaf.dtype)
        return torch.randint(0, high, (steps, *leaf.shape), generator=generator, dtype=dtype)

    return tree_map(draw, tree)


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_every_kind_of_observation_becomes_features_that_depend_on_it(tree: Tree) -> None:
    torch.manual_seed(0)
    module = encoder(tree, CONFIG)
    features = module(random_obs(tree, 5))
    assert features.shape == (5, 32)
    assert features.dtype == torch.float32
    assert (features != features[0]).any()


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_encoder_encodes_each_step_alone(tree: Tree) -> None:
    module = encoder(tree, CONFIG)
    obs = random_obs(tree, 6)
    alone = torch.cat([module(tree_map(lambda leaf, i=i: leaf[i : i + 1], obs)) for i in range(6)])
    torch.testing.assert_close(module(obs), alone, rtol=1e-4, atol=1e-5)


def test_encoder_of_an_observation_of_zeros_is_finite() -> None:
    obs = tree_map(torch.from_numpy, zeros(NESTED, 2))
    assert encoder(NESTED, CONFIG)(obs).isfinite().all()


def test_encoder_activations_of_pixels_lie_channels_last() -> None:
    module = encoder(PIXELS, CONFIG)
    assert isinstance(module, torch.nn.Sequential)
    hidden = module[:2](random_obs(PIXELS, 5))
    assert hidden.is_contiguous(memory_format=torch.channels_last)


def test_encoder_scales_bytes_and_no_other_numbers() -> None:
    byte = torch.tensor([[0, 51, 255]], dtype=torch.uint8)
    torch.testing.assert_close(Numbers(1 / 255)(byte), torch.tensor([[0.0, 0.2, 1.0]]))
    torch.testing.assert_close(Numbers(1.0)(torch.tensor([[3]])), torch.tensor([[3.0]]))


def test_one_hot_equals_torchs_own_for_each_element() -> None:
    categories = torch.tensor([[0, 6, 1], [1, 0, 3]])
    each = [torch.nn.functional.one_hot(categories[:, i], count).float() for i, count in enumerate(MULTI.categories)]
    torch.testing.assert_close(OneHot(MULTI.categories)(categories), torch.cat(each, -1))


def test_a_grid_of_few_cells_is_read_as_numbers() -> None:
    leaf = Leaf(kind="box", shape=(7, 7, 3), dtype="uint8")
    assert leaf.is_grid and not any(isinstance(module, torch.nn.Conv2d) for module in encoder(leaf, CONFIG).modules())
    obs = random_obs(leaf, 4)
    assert encoder(leaf, CONFIG)(obs).shape == (4, CONFIG.hidden_size)


@pytest.mark.parametrize("shape", [(35, 64, 3), (64, 35, 3), (3, 64, 64)])
def test_encoder_refuses_small_images_with_the_size_that_is_needed(shape: tuple[int, ...]) -> None:
    leaf = Leaf(kind="box", shape=shape, dtype="uint8")
    with pytest.raises(ConfigError, match=r"'eye' has shape .*\[height, width, channels\].*36 x 36"):
        encoder({"eye": leaf, "body": VECTOR}, CONFIG)


def test_bytes_of_three_axes_that_are_no_image_are_refused_with_what_to_do() -> None:
    leaf = Leaf(kind="box", shape=(21, 79, 80), dtype="uint8")
    with pytest.raises(ConfigError, match=r"'screen_descriptions' .*if it is no image, make .* leave it out"):
        encoder({"screen_descriptions": leaf, "blstats": VECTOR}, CONFIG)


@pytest.mark.parametrize(
    "sizes",
    [
        {"conv_channels": [32, 64]},
        {"conv_channels": [8, 0, 8]},
        {"conv_kernels": [8, 4]},
        {"conv_strides": []},
        NO_LAYERS,
    ],
)
def test_convolutions_of_unequally_many_or_no_pixels_are_refused_by_key(sizes: dict[str, list[int]]) -> None:
    with pytest.raises(ConfigError, match=r"policy\.conv_channels, conv_kernels and conv_strides must be lists of equ"):
        PolicyConfig(**sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("channels", "kernels", "strides", "edge"),
    [([4], [7], [7], 7), ([4, 6], [7, 3], [7, 1], 21), ([4, 6, 8, 2], [5, 3, 3, 2], [2, 2, 1, 3], 21)],
)
def test_convolutions_are_as_many_and_as_large_as_asked_for(
    channels: list[int], kernels: list[int], strides: list[int], edge: int
) -> None:
    config = PolicyConfig(hidden_size=8, conv_channels=channels, conv_kernels=kernels, conv_strides=strides)
    leaf = Leaf(kind="box", shape=(edge, 64, 3), dtype="uint8")
    module = encoder({"eye": leaf, "body": VECTOR}, config)
    made = [one for one in module.modules() if isinstance(one, torch.nn.Conv2d)]
    assert [(one.out_channels, one.kernel_size[0], one.stride[0]) for one in made] == [
        *zip(channels, kernels, strides, strict=True)
    ]
    assert module(random_obs({"eye": leaf, "body": VECTOR}, 3)).shape == (3, 8)
    smaller = Leaf(kind="box", shape=(edge - 1, 64, 3), dtype="uint8")
    with pytest.raises(ConfigError, match=rf"the convolutions need at least {edge} x {edge}:"):
        encoder({"eye": smaller, "body": VECTOR}, config)


@pytest.mark.parametrize("tree", [{}, Leaf(kind="box", shape=(0,), dtype="float32")])
def test_encoder_of_an_observation_of_nothing_is_refused(tree: Tree) -> None:
    with pytest.raises(ConfigError, match="nothing to see"):
        encoder(tree, CONFIG)


def test_encoder_layers_start_orthogonal_with_zero_biases() -> None:
    module = encoder(Leaf(kind="box", shape=(32,), dtype="float32"), CONFIG)
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all()
        else:
            torch.testing.assert_close(parameter @ parameter.T, 2 * torch.eye(32), rtol=0, atol=1e-5)


@pytest.mark.parametrize("steps", [4, 5, 8])
def test_by_parts_encodes_parts_of_bounded_size_to_the_same_features(
    monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr(encoders, "ENCODE_CHUNK_STEPS", 4)
    encode, obs, sizes = encoder(NESTED, CONFIG), random_obs(NESTED, steps), list[int]()

    def counted(part: Tree) -> torch.Tensor:
        sizes.append(len(part["image"]))
        features: torch.Tensor = encode(part)
        return features

    torch.testing.assert_close(encoders.by_parts(counted, obs), encode(obs))
    assert sizes == [4] * (steps // 4) + [steps % 4] * (steps % 4 > 0)
