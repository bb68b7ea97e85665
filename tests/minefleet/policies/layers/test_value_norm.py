"""PopArt: statistics follow the targets, outputs stay where they were."""

import pytest
import torch
from torch import nn

from minefleet.policies import ValueNorm
from minefleet.policies.layers.mergeable_moments import moments_of


def test_value_norm_without_an_update_is_the_identity() -> None:
    norm, value = ValueNorm(), torch.randn(3, 4)
    assert torch.equal(norm.normalize(value), value)
    assert torch.equal(norm.denormalize(value), value)


def test_value_norm_update_leaves_denormalized_outputs_unchanged() -> None:
    torch.manual_seed(0)
    norm, layer, features = ValueNorm(beta=0.9), nn.Linear(8, 1), torch.randn(5, 8)
    for scale in (1.0, 30.0, 0.2, 3.0):
        larger = norm.std.item()
        before = norm.denormalize(layer(features))
        norm.absorb(moments_of(scale * torch.randn(64) + scale), layer)
        after = norm.denormalize(layer(features))
        torch.testing.assert_close(after, before, rtol=1e-6, atol=1e-6 * max(larger, norm.std.item()))


def test_value_norm_update_leaves_float64_outputs_unchanged_to_rounding() -> None:
    torch.manual_seed(0)
    norm, layer = ValueNorm(), nn.Linear(8, 1).double()
    features = torch.randn(5, 8, dtype=torch.float64)
    before = norm.denormalize(layer(features))
    norm.absorb(moments_of(1000 + 50 * torch.randn(64)), layer)
    torch.testing.assert_close(norm.denormalize(layer(features)), before, rtol=0, atol=1e-9)


def test_value_norm_normalizes_the_targets_of_its_first_update() -> None:
    norm, targets = ValueNorm(), 1000 + 5 * torch.randn(256, generator=torch.Generator().manual_seed(0))
    norm.absorb(moments_of(targets), nn.Linear(2, 1))
    normal = norm.normalize(targets)
    assert normal.mean().item() == pytest.approx(0, abs=1e-3)
    assert normal.std(correction=0).item() == pytest.approx(1, abs=1e-3)
    torch.testing.assert_close(norm.denormalize(normal), targets)


def test_value_norm_statistics_equal_debiased_moving_averages_of_the_moments() -> None:
    norm, beta = ValueNorm(beta=0.8), 0.8
    generator = torch.Generator().manual_seed(0)
    first_moment = second_moment = 0.0
    for k in range(1, 8):
        targets = torch.randn(16, generator=generator, dtype=torch.float64) * k + 3
        norm.absorb(moments_of(targets), nn.Linear(2, 1))
        first_moment = beta * first_moment + (1 - beta) * targets.mean().item()
        second_moment = beta * second_moment + (1 - beta) * targets.square().mean().item()
        mean = first_moment / (1 - beta**k)
        assert norm.mean.item() == pytest.approx(mean, abs=1e-9)
        assert norm.variance.item() == pytest.approx(second_moment / (1 - beta**k) - mean**2, abs=1e-9)


def test_value_norm_of_constant_targets_keeps_the_smallest_deviation() -> None:
    norm, layer = ValueNorm(min_std=0.01), nn.Linear(2, 1)
    for _ in range(3):
        norm.absorb(moments_of(torch.full((8,), 7.0)), layer)
    assert norm.std.item() == pytest.approx(0.01)
    assert all(parameter.isfinite().all() for parameter in layer.parameters())


def test_value_norm_that_is_switched_off_changes_nothing() -> None:
    norm, layer = ValueNorm(enabled=False), nn.Linear(2, 1)
    weight = layer.weight.clone()
    norm.absorb(moments_of(torch.randn(8) * 100), layer)
    assert torch.equal(layer.weight, weight)
    assert torch.equal(norm.normalize(torch.tensor([5.0])), torch.tensor([5.0]))


def test_value_norm_statistics_are_part_of_its_state() -> None:
    norm, other = ValueNorm(), ValueNorm()
    norm.absorb(moments_of(torch.randn(8) * 10 + 4), nn.Linear(2, 1))
    other.load_state_dict(norm.state_dict())
    assert other.mean == norm.mean
    assert other.std == norm.std


def test_value_norm_keeps_the_dtype_of_values() -> None:
    norm = ValueNorm()
    assert norm.normalize(torch.ones(2, 3)).dtype == torch.float32
    assert norm.denormalize(torch.ones(2, 3)).dtype == torch.float32
