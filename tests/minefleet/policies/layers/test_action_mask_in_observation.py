"""Masked heads against the same distributions over the allowed categories alone."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from minefleet.config import PolicyConfig
from minefleet.core.errors import ConfigError
from minefleet.core.schema import Leaf, Schema
from minefleet.core.tree import Tree, flatten, tree_map
from minefleet.policies import build
from minefleet.policies.layers.distributions import possible
from minefleet.policies.layers.heads import ActionHead, action_head
from minefleet.policies.policy import Policy

DISCRETE = Leaf(kind="discrete", shape=(), dtype="int64", categories=(5,))
MULTI = Leaf(kind="multi_discrete", shape=(3,), dtype="int64", categories=(2, 4, 1))
BOX = Leaf(kind="box", shape=(2,), dtype="float32")
NESTED = {"move": DISCRETE, "camera": BOX, "more": {"keys": MULTI}}
VECTOR = Leaf(kind="box", shape=(3,), dtype="float32")
FEATURES = 6
ROWS = 7


def masks_for(action: Tree, dtype: str = "int8") -> Tree:
    """The schema of a mask, without the parts that have no categories."""
    if isinstance(action, dict):
        parts = {key: masks_for(child) for key, child in action.items()}
        return {key: part for key, part in parts.items() if part is not None}
    return Leaf(kind="box", shape=(sum(action.categories),), dtype=dtype) if action.categories else None


def draw_mask(counts: tuple[int, ...], rng: np.random.Generator, share: float) -> Tensor:
    """[ROWS, 1, sum]: at least one of each part is allowed."""
    mask = rng.random((ROWS, 1, sum(counts))) < share
    starts = np.cumsum((0, *counts[:-1]))
    for start, count in zip(starts, counts, strict=True):
        mask[np.arange(ROWS), 0, start + rng.integers(0, count, ROWS)] = True
    return torch.from_numpy(mask.astype(np.int8))


def random_mask(action: Tree, rng: np.random.Generator, share: float = 0.5) -> Tree:
    if isinstance(action, dict):
        return {key: random_mask(child, rng, share) for key, child in action.items() if masks_for(child) is not None}
    return draw_mask(action.categories, rng, share)


def head_for(leaf: Tree, seed: int) -> ActionHead:
    torch.manual_seed(seed)
    head = action_head(leaf, FEATURES)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.7 * torch.randn(parameter.shape))
    return head


def reference(logits: Tensor) -> Any:
    return Categorical(logits=logits)


def parts(leaf: Leaf, tensor: Tensor, row: int, mask: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Of one row, per element: the logits of the allowed categories, and which these are."""
    logits = tensor[row, 0].reshape(len(leaf.categories), -1)
    allowed = [part.nonzero().flatten() for part in torch.split(mask[row, 0], list(leaf.categories))]
    return [(logits[index][which], which) for index, which in enumerate(allowed)]


@given(seed=st.integers(0, 10_000), multi=st.booleans())
@settings(max_examples=60)
def test_masked_logp_entropy_and_kl_are_those_over_the_allowed(seed: int, multi: bool) -> None:
    leaf = MULTI if multi else DISCRETE
    features, mask = torch.randn(ROWS, 1, FEATURES), random_mask(leaf, np.random.default_rng(seed))
    heads = head_for(leaf, seed), head_for(leaf, seed + 1)
    bare = [head(features) for head in heads]
    params, other = (head.masked(logits, mask) for head, logits in zip(heads, bare, strict=True))
    action = heads[0].sample(params)
    logp, entropy, kl = heads[0].logp(params, action), heads[0].entropy(params), heads[0].kl(params, other)
    for row in range(ROWS):
        mine = parts(leaf, bare[0], row, mask)
        theirs = [reference(logits) for logits, _ in parts(leaf, bare[1], row, mask)]
        chosen = action[row, 0].reshape(-1)
        each = [(reference(logits), (which == chosen[i]).nonzero()) for i, (logits, which) in enumerate(mine)]
        torch.testing.assert_close(logp[row, 0], sum((d.log_prob(at[0, 0]) for d, at in each), torch.tensor(0.0)))
        torch.testing.assert_close(entropy[row, 0], sum((d.entropy() for d, _ in each), torch.tensor(0.0)))
        expected = sum((kl_divergence(d, q) for (d, _), q in zip(each, theirs, strict=True)), torch.tensor(0.0))
        torch.testing.assert_close(kl[row, 0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("leaf", [DISCRETE, MULTI, NESTED], ids=["discrete", "multi_discrete", "nested"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.int64])
def test_masked_sample_and_mode_are_never_forbidden(leaf: Tree, dtype: torch.dtype) -> None:
    rng, head = np.random.default_rng(1), head_for(leaf, 1)
    for _ in range(200):
        mask = random_mask(leaf, rng, share=0.2)
        params = head.masked(head(5 * torch.randn(ROWS, 1, FEATURES)), tree_map(lambda one: one.to(dtype), mask))
        for deterministic in (False, True):
            action, allowed = flatten(head.sample(params, deterministic)), flatten(mask)
            for path, part in allowed.items():
                categories = flatten(leaf)[path].categories
                starts = torch.tensor([0, *np.cumsum(categories)[:-1]])
                assert (part.gather(-1, action[path].reshape(ROWS, 1, -1) + starts) != 0).all()


def test_a_random_number_of_exactly_zero_draws_no_category_of_probability_zero() -> None:
    seed, numbers_before_the_zero = 146, 18555
    generators = [torch.Generator().manual_seed(seed) for _ in range(2)]
    for generator in generators:
        torch.rand(numbers_before_the_zero, generator=generator)
    assert torch.rand(1, generator=generators[0]).item() == 0.0
    head = head_for(DISCRETE, 0)
    params = head.masked(torch.zeros(1, 1, 5), torch.tensor([[[0, 0, 1, 1, 0]]]))
    assert head.sample(params, generator=generators[1]).item() == 2


def test_category_of_probability_zero_that_rounding_draws_becomes_the_likeliest() -> None:
    probability = torch.tensor([[0.2, 0.0, 0.8], [0.2, 0.0, 0.8]])
    assert possible(torch.tensor([1, 0]), probability).tolist() == [2, 0]


@pytest.mark.parametrize("leaf", [DISCRETE, MULTI, NESTED], ids=["discrete", "multi_discrete", "nested"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_masked_gradients_are_finite_and_reach_no_forbidden_logit(leaf: Tree, dtype: torch.dtype) -> None:
    head, other = head_for(leaf, 2).to(dtype), head_for(leaf, 3).to(dtype)
    mask = random_mask(leaf, np.random.default_rng(2))
    features = torch.randn(ROWS, 1, FEATURES).to(dtype)
    bare = tree_map(lambda one: one.detach().requires_grad_(), head(features))
    params, theirs = head.masked(bare, mask), other.masked(other(features), mask)
    action = head.sample(params)
    total = head.logp(params, action).sum() + head.entropy(params).sum() + head.kl(params, theirs).sum()
    total.backward()  # type: ignore[no-untyped-call]
    assert total.isfinite()
    for path, part in flatten(bare).items():
        assert part.grad is not None
        assert part.grad.isfinite().all()
        if path == "" and leaf is DISCRETE:
            assert (part.grad[mask == 0] == 0).all()


def test_head_with_a_mask_that_allows_nothing_is_uniform_and_finite() -> None:
    head = head_for(DISCRETE, 4)
    params = head.masked(head(torch.randn(ROWS, 1, FEATURES)), torch.zeros(ROWS, 1, 5))
    torch.testing.assert_close(head.entropy(params), torch.full((ROWS, 1), np.log(5), dtype=torch.float32))


def policy_for(action: Tree, **config: Any) -> Policy:
    schema = Schema(obs={"x": VECTOR, "action_mask": masks_for(action)}, action=action)
    torch.manual_seed(0)
    return build(PolicyConfig(hidden_size=8, hidden_layers=1, **config), schema)


@pytest.mark.parametrize("config", [{}, {"gru_size": 4}, {"separate_value_trunk": True}, {"normalize_obs": True}])
def test_action_mask_changes_what_is_chosen_and_no_other_output(config: dict[str, Any]) -> None:
    policy = policy_for(NESTED, **config)
    x, first = torch.randn(ROWS, 1, 3), torch.zeros(ROWS, 1, dtype=torch.bool)
    masks = [random_mask(NESTED, np.random.default_rng(seed)) for seed in (1, 2)]
    with torch.no_grad():
        one, other = (policy({"x": x, "action_mask": mask}, policy.initial_state(ROWS), first)[0] for mask in masks)
    torch.testing.assert_close(one.value, other.value, rtol=0, atol=0)
    torch.testing.assert_close(one.params["camera"]["mean"], other.params["camera"]["mean"], rtol=0, atol=0)
    assert ((one.params["move"] < -1e30) == (masks[0]["move"] == 0)).all()


def test_a_policy_that_sees_only_a_mask_sees_it() -> None:
    schema = Schema(obs={"action_mask": masks_for(DISCRETE)}, action=DISCRETE)
    policy = build(PolicyConfig(hidden_size=8), schema)
    mask = {"action_mask": random_mask(DISCRETE, np.random.default_rng(0))}
    with torch.no_grad():
        value = policy(mask, {}, torch.zeros(ROWS, 1, dtype=torch.bool))[0].value
    assert (value != value[0]).any()


@pytest.mark.parametrize(
    ("mask", "action", "message"),
    [
        (Leaf(kind="box", shape=(4,), dtype="int8"), DISCRETE, r"'action_mask' has shape \(4,\).*: \(5,\)"),
        (Leaf(kind="box", shape=(2,), dtype="int8"), BOX, r"masks a box, which has no categories"),
        ({"a": masks_for(DISCRETE)}, DISCRETE, "must mirror the action"),
        (masks_for(DISCRETE), NESTED, "must mirror the action"),
        ({"turn": masks_for(DISCRETE)}, NESTED, r"masks 'turn', and the action has \['camera', 'more', 'move'\]"),
        ({"more": {"keys": masks_for(DISCRETE)}}, NESTED, r"'action_mask/more/keys' has shape \(5,\).*: \(7,\)"),
    ],
)
def test_a_mask_that_does_not_fit_the_action_is_refused_by_path(mask: Tree, action: Tree, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(PolicyConfig(hidden_size=8), Schema(obs={"x": VECTOR, "action_mask": mask}, action=action))


def test_action_mask_that_leaves_out_a_part_leaves_it_free() -> None:
    schema = Schema(obs={"x": VECTOR, "action_mask": {"move": masks_for(DISCRETE)}}, action=NESTED)
    policy = build(PolicyConfig(hidden_size=8), schema)
    obs = {"x": torch.zeros(1, 1, 3), "action_mask": {"move": torch.tensor([[[0, 0, 1, 0, 0]]])}}
    params = policy(obs, {}, torch.zeros(1, 1, dtype=torch.bool))[0].params
    assert policy.action_head.sample(params, True)["move"].item() == 2
    keys = policy.action_head.sample(params)["more"]["keys"]
    assert keys.shape == (1, 1, 3)
