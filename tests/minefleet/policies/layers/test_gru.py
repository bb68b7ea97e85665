"""The GRU core: resets anywhere, the same numbers however time is cut."""

import pytest
import torch
from torch import Tensor

from minefleet.policies.layers.gru import GRUCore, reset_steps

ROWS, STEPS, FEATURES, SIZE = 5, 17, 4, 6


def stepwise(core: GRUCore, features: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """The definition: before each step, rows that are first start from zeros."""
    outputs = []
    for t in range(features.shape[1]):
        state = torch.where(first[:, t, None], torch.zeros_like(state), state)
        output, last = core.gru(features[:, t : t + 1], state[None])
        state = last[0]
        outputs.append(output)
    return torch.cat(outputs, 1), state


def case(seed: int, density: float) -> tuple[GRUCore, Tensor, Tensor, Tensor]:
    torch.manual_seed(seed)
    first = torch.rand(ROWS, STEPS) < density
    return GRUCore(FEATURES, SIZE), torch.randn(ROWS, STEPS, FEATURES), torch.randn(ROWS, SIZE), first


@pytest.mark.parametrize("density", [0.0, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_gru_over_a_sequence_with_resets_anywhere_equals_stepwise_evaluation(seed: int, density: float) -> None:
    core, features, state, first = case(seed, density)
    for ours, expected in zip(core(features, state, first), stepwise(core, features, state, first), strict=True):
        torch.testing.assert_close(ours, expected)


def test_gru_after_a_first_equals_a_run_from_a_fresh_state() -> None:
    core, features, state, first = case(0, 0.0)
    first[2, 7] = True
    output, last = core(features, state, first)
    fresh, fresh_last = core(features[2:3, 7:], core.initial_state(1), torch.zeros(1, STEPS - 7, dtype=torch.bool))
    torch.testing.assert_close(output[2:3, 7:], fresh)
    torch.testing.assert_close(last[2:3], fresh_last)


def test_gru_reset_leaves_the_other_rows_alone() -> None:
    core, features, state, first = case(1, 0.0)
    before, _ = core(features, state, first)
    first[2, 7] = True
    after, _ = core(features, state, first)
    others = [0, 1, 3, 4]
    torch.testing.assert_close(after[others], before[others])
    assert not torch.allclose(after[2, 7:], before[2, 7:])


def test_gru_over_two_halves_equals_the_whole() -> None:
    core, features, state, first = case(2, 0.2)
    whole, last = core(features, state, first)
    left, middle = core(features[:, :8], state, first[:, :8])
    right, end = core(features[:, 8:], middle, first[:, 8:])
    torch.testing.assert_close(torch.cat([left, right], 1), whole)
    torch.testing.assert_close(end, last)


def test_gru_first_resets_a_state_of_nan() -> None:
    core, features, state, first = case(3, 0.0)
    first[:, 0] = True
    output, _ = core(features, torch.full_like(state, float("nan")), first)
    assert output.isfinite().all()


def test_reset_steps_are_zero_and_the_steps_at_which_a_row_is_reset() -> None:
    first = torch.zeros(3, 9, dtype=torch.bool)
    first[0, 0] = first[1, 4] = first[2, 4] = first[0, 8] = True
    assert reset_steps(first) == [0, 4, 8]
    assert reset_steps(torch.ones(3, 1, dtype=torch.bool)) == [0]


def test_gru_gradients_stop_at_a_first() -> None:
    core, features, state, first = case(4, 0.0)
    first[:, 9] = True
    features.requires_grad_()
    core(features, state, first)[0][:, 9:].sum().backward()
    assert features.grad is not None
    assert (features.grad[:, :9] == 0).all()
    assert (features.grad[:, 9:] != 0).any()
