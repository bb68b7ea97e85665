"""GAE against its definition, the double sum, written slowly."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from minefleet_learner.gae import generalized_advantages


@dataclass(frozen=True)
class Steps:
    """Random steps with random cuts, in float64. The mask is False behind a random length and in holes."""

    reward: Tensor
    value: Tensor
    next_value: Tensor
    terminated: Tensor
    truncated: Tensor
    mask: Tensor


def random_steps(seed: int) -> Steps:
    generator = torch.Generator().manual_seed(seed)
    rows, length = (int(torch.randint(1, high, (), generator=generator)) for high in (6, 20))
    reward, value, next_value = torch.randn(3, rows, length, generator=generator, dtype=torch.float64)
    cuts = torch.rand(2, rows, length, generator=generator) < 0.15
    lengths = torch.randint(1, length + 1, (rows, 1), generator=generator)
    holes = torch.rand(rows, length, generator=generator) < 0.05
    return Steps(reward, value, next_value, cuts[0], cuts[1], (torch.arange(length) < lengths) & ~holes)


def definition(steps: Steps, discount: float, gae_lambda: float) -> Tensor:
    """Âₜ = Σₗ (γλ)ˡ δₜ₊ₗ up to the end of the episode, of the row or of the mask."""
    advantage = torch.zeros_like(steps.reward)
    for row, start in steps.mask.nonzero().tolist():
        for step in range(start, steps.reward.shape[1]):
            if not steps.mask[row, step]:
                break
            future = 0.0 if steps.terminated[row, step] else steps.next_value[row, step]
            delta = steps.reward[row, step] + discount * future - steps.value[row, step]
            advantage[row, start] += (discount * gae_lambda) ** (step - start) * delta
            if steps.terminated[row, step] or steps.truncated[row, step]:
                break
    return advantage


def computed(steps: Steps, discount: float, gae_lambda: float) -> Tensor:
    return generalized_advantages(
        steps.reward,
        steps.value,
        steps.next_value,
        steps.terminated,
        steps.truncated,
        discount=discount,
        gae_lambda=gae_lambda,
        mask=steps.mask,
    )


@pytest.mark.parametrize("seed", range(20))
def test_advantages_equal_the_double_sum_on_random_shapes_cuts_and_masks(seed: int) -> None:
    steps = random_steps(seed)
    torch.testing.assert_close(computed(steps, 0.97, 0.9), definition(steps, 0.97, 0.9), rtol=0, atol=1e-9)


def test_without_a_mask_every_step_counts() -> None:
    steps = random_steps(3)
    whole = replace(steps, mask=torch.ones_like(steps.mask))
    without = generalized_advantages(
        steps.reward, steps.value, steps.next_value, steps.terminated, steps.truncated, discount=0.9, gae_lambda=0.8
    )
    torch.testing.assert_close(without, definition(whole, 0.9, 0.8), rtol=0, atol=1e-9)


def test_lambda_one_gives_the_return_minus_the_value() -> None:
    reward, value = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[0.5, 0.25, 0.125]])
    no, end = torch.zeros(1, 3, dtype=torch.bool), torch.tensor([[False, False, True]])
    advantage = generalized_advantages(reward, value, value.roll(-1, 1), end, no, discount=0.5, gae_lambda=1.0)
    torch.testing.assert_close(advantage + value, torch.tensor([[3.0, 4.0, 4.0]]))


def test_a_truncated_step_bootstraps_and_a_terminated_one_does_not() -> None:
    reward, value, next_value = torch.tensor([[1.0]]), torch.tensor([[10.0]]), torch.tensor([[100.0]])
    yes, no = torch.tensor([[True]]), torch.tensor([[False]])
    cut = generalized_advantages(reward, value, next_value, no, yes, discount=0.5, gae_lambda=0.95)
    ended = generalized_advantages(reward, value, next_value, yes, no, discount=0.5, gae_lambda=0.95)
    assert (cut.item(), ended.item()) == (41.0, -9.0)


def test_garbage_at_padding_and_behind_a_termination_does_not_spread() -> None:
    steps = random_steps(5)
    spoilt = {
        name: getattr(steps, name).masked_fill(~steps.mask, float("nan")) for name in ("reward", "value", "next_value")
    }
    spoilt["next_value"] = spoilt["next_value"].masked_fill(steps.terminated, float("nan"))
    torch.testing.assert_close(computed(replace(steps, **spoilt), 0.9, 0.9), computed(steps, 0.9, 0.9))


def test_other_shapes_are_refused_with_the_shapes_in_the_message() -> None:
    good, bad = torch.zeros(2, 3), torch.zeros(2, 4)
    no = torch.zeros(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"\(2, 3\), \(2, 4\)"):
        generalized_advantages(good, bad, good, no, no, discount=0.9, gae_lambda=0.9)
