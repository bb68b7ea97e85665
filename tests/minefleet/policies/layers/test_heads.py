"""Action heads against torch.distributions, which they replace on the hot path."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal, kl_divergence

from minefleet.core.errors import ConfigError
from minefleet.core.schema import Leaf
from minefleet.core.tree import Tree, flatten
from minefleet.policies.layers.distributions import categorical_sample
from minefleet.policies.layers.heads import ActionHead, DictHead, action_head

DISCRETE = Leaf(kind="discrete", shape=(), dtype="int64", categories=(5,))
MULTI = Leaf(kind="multi_discrete", shape=(3,), dtype="int64", categories=(2, 7, 4))
BOX = Leaf(kind="box", shape=(2, 3), dtype="float32")
SCALAR = Leaf(kind="box", shape=(), dtype="float32")
NESTED = {"forward": DISCRETE, "camera": {"pitch.yaw": BOX, "keys": MULTI}, "train": SCALAR}
TREES = {"discrete": DISCRETE, "multi_discrete": MULTI, "box": BOX, "scalar": SCALAR, "nested": NESTED}
FEATURES = 6


def head_for(leaf: Tree) -> ActionHead:
    """A head whose distributions are far from uniform."""
    head = action_head(leaf, FEATURES, initial_log_std=-0.5)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.7 * torch.randn(parameter.shape))
    return head


def distributions(leaf: Tree, params: Tree) -> list[tuple[str, Any]]:
    """Path and reference distribution of each independent part of an action."""
    if isinstance(leaf, dict):
        return [
            (f"{key}/{path}".strip("/"), part) for key in leaf for path, part in distributions(leaf[key], params[key])
        ]
    if leaf.kind == "discrete":
        return [("", Categorical(logits=params))]
    if leaf.kind == "multi_discrete":
        return [(str(i), Categorical(logits=params[..., i, :count])) for i, count in enumerate(leaf.categories)]
    return [("", Independent(Normal(params["mean"], params["log_std"].exp()), len(leaf.shape)))]


def pieces(leaf: Tree, action: Tree) -> dict[str, Tensor]:
    """The action cut into the same parts."""
    if isinstance(leaf, dict):
        return {
            f"{key}/{path}".strip("/"): part for key in leaf for path, part in pieces(leaf[key], action[key]).items()
        }
    if leaf.kind == "multi_discrete":
        return {str(i): action[..., i] for i in range(len(leaf.categories))}
    return {"": action}


def total(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(0)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("leaf", TREES.values(), ids=TREES.keys())
def test_head_logp_entropy_and_kl_equal_those_of_torch_distributions(leaf: Tree) -> None:
    head = head_for(leaf)
    params, other = head(torch.randn(4, 3, FEATURES)), head_for(leaf)(torch.randn(4, 3, FEATURES))
    action = head.sample(params)
    ours, theirs = distributions(leaf, params), dict(distributions(leaf, other))
    parts = pieces(leaf, action)
    torch.testing.assert_close(head.logp(params, action), total([d.log_prob(parts[path]) for path, d in ours]))
    torch.testing.assert_close(head.entropy(params), total([d.entropy() for _, d in ours]))
    torch.testing.assert_close(
        head.kl(params, other), total([kl_divergence(d, theirs[path]) for path, d in ours]), rtol=1e-4, atol=1e-5
    )
    assert head.logp(params, action).shape == (4, 3)


@pytest.mark.parametrize("leaf", TREES.values(), ids=TREES.keys())
def test_head_entropy_and_kl_are_means_over_its_own_samples(leaf: Tree) -> None:
    head, reference = head_for(leaf), head_for(leaf)
    features = 0.3 * torch.randn(1, 1, FEATURES).expand(1, 40000, FEATURES)
    with torch.no_grad():
        params, other = head(features), reference(features)
        action = head.sample(params, generator=torch.Generator().manual_seed(1))
        for exact, estimate in (
            (head.entropy(params), -head.logp(params, action)),
            (head.kl(params, other), head.logp(params, action) - head.logp(other, action)),
        ):
            error = estimate.std() / 200 + 1e-6
            assert abs(exact.mean() - estimate.mean()) < 5 * error


@pytest.mark.parametrize("leaf", TREES.values(), ids=TREES.keys())
def test_head_kl_to_itself_is_zero(leaf: Tree) -> None:
    head = head_for(leaf)
    params = head(torch.randn(2, 3, FEATURES))
    torch.testing.assert_close(head.kl(params, params), torch.zeros(2, 3))


@pytest.mark.parametrize("leaf", TREES.values(), ids=TREES.keys())
def test_head_samples_have_the_schemas_shapes_and_dtypes(leaf: Tree) -> None:
    head = head_for(leaf)
    params = head(torch.randn(4, 3, FEATURES))
    for deterministic in (False, True):
        action = flatten(head.sample(params, deterministic=deterministic))
        for path, expected in flatten(leaf).items():
            assert action[path].shape == (4, 3, *expected.shape)
            assert str(action[path].dtype) == f"torch.{expected.dtype}"


@pytest.mark.parametrize("leaf", TREES.values(), ids=TREES.keys())
def test_head_samples_of_a_generator_are_repeatable_and_independent_of_the_global_seed(leaf: Tree) -> None:
    head = head_for(leaf)
    params = head(torch.randn(8, 4, FEATURES))

    def draw(seed: int) -> list[list[Any]]:
        torch.rand(3)
        action = head.sample(params, generator=torch.Generator().manual_seed(seed))
        return [tensor.tolist() for tensor in flatten(action).values()]

    assert draw(7) == draw(7)
    assert draw(7) != draw(8)


@pytest.mark.parametrize("leaf", TREES.values(), ids=TREES.keys())
def test_head_deterministic_sample_is_the_most_likely_action(leaf: Tree) -> None:
    head = head_for(leaf)
    params = head(torch.randn(8, 4, FEATURES))
    best = head.logp(params, head.sample(params, deterministic=True))
    for _ in range(20):
        assert (head.logp(params, head.sample(params)) <= best + 1e-5).all()


@pytest.mark.parametrize("leaf", TREES.values(), ids=TREES.keys())
@pytest.mark.parametrize("number", ["logp", "entropy", "kl"])
def test_head_gradients_of_logp_entropy_and_kl_are_finite(leaf: Tree, number: str) -> None:
    head = head_for(leaf)
    params, other = head(torch.randn(4, 3, FEATURES)), head(torch.randn(4, 3, FEATURES))
    numbers: dict[str, Callable[[], Tensor]] = {
        "logp": lambda: head.logp(params, head.sample(params)),
        "entropy": lambda: head.entropy(params),
        "kl": lambda: head.kl(params, other),
    }
    numbers[number]().sum().backward()  # type: ignore[no-untyped-call]
    gradients = [parameter.grad for parameter in head.parameters() if parameter.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_head_never_draws_absent_categories_and_gives_them_no_probability() -> None:
    head = head_for(MULTI)
    params = head(torch.randn(2000, 10, FEATURES))
    action = head.sample(params)
    assert (action < torch.tensor(MULTI.categories)).all()
    torch.testing.assert_close(params.softmax(-1)[..., 0, 2:], torch.zeros(2000, 10, 5))


def test_low_precision_logits_are_drawn_from_at_full_resolution() -> None:
    drawn = categorical_sample(torch.zeros(5000, 1000, dtype=torch.bfloat16))
    assert len(set(drawn.tolist())) > 900


def test_fresh_policies_are_nearly_uniform() -> None:
    head = action_head(DISCRETE, FEATURES)
    params = head(torch.randn(4, 3, FEATURES))
    torch.testing.assert_close(head.entropy(params), torch.full((4, 3), 5.0).log(), rtol=0, atol=1e-2)


def test_dict_head_takes_names_that_torch_reserves() -> None:
    names = ["forward", "train", "a.b", "a%2eb", "parameters", "0"]
    head = action_head(dict.fromkeys(names, DISCRETE), FEATURES)
    assert isinstance(head, DictHead)
    assert len(head.state_dict()) == 2 * len(names)
    assert set(head.sample(head(torch.randn(1, 1, FEATURES)))) == set(names)


def test_integer_boxes_are_refused_by_name_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match=r"'arm/grip' is a box of int32.*MultiDiscrete"):
        action_head({"arm": {"grip": Leaf(kind="box", shape=(2,), dtype="int32")}}, FEATURES)


def test_action_head_of_an_empty_action_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to choose"):
        action_head({}, FEATURES)
