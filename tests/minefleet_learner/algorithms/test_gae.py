"""GAE against its definition, the double sum, written slowly."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.minefleet_learner.random_steps import NAMES, SHARE, STEPS, Fragmented, Steps, fragmented, random_steps
from torch import Tensor

from minefleet_learner.algorithms.fragment_chain_advantages import chain
from minefleet_learner.algorithms.gae import generalized_advantages


def definition(steps: Steps, discount: float, gae_lambda: float, duration: Tensor | None = None) -> Tensor:
    """Âₜ = Σₗ λˡ γ^(dₜ + ... + dₜ₊ₗ₋₁) δₜ₊ₗ up to the end of the episode, of the row or of the mask; d = 1 without."""
    duration = torch.ones_like(steps.reward, dtype=torch.int64) if duration is None else duration
    advantage = torch.zeros_like(steps.reward)
    for row, start in steps.mask.nonzero().tolist():
        for step in range(start, steps.reward.shape[1]):
            if not steps.mask[row, step]:
                break
            future = 0.0 if steps.terminated[row, step] else steps.next_value[row, step]
            delta = steps.reward[row, step] + discount ** int(duration[row, step]) * future - steps.value[row, step]
            elapsed = int(duration[row, start:step].sum())
            advantage[row, start] += gae_lambda ** (step - start) * discount**elapsed * delta
            if steps.terminated[row, step] or steps.truncated[row, step]:
                break
    return advantage


def computed(steps: Steps, discount: float, gae_lambda: float, duration: Tensor | None = None) -> Tensor:
    return generalized_advantages(
        steps.reward,
        steps.value,
        steps.next_value,
        steps.terminated,
        steps.truncated,
        discount=discount,
        gae_lambda=gae_lambda,
        mask=steps.mask,
        duration=duration,
    )


@given(STEPS, SHARE, SHARE)
def test_gae_of_steps_of_any_duration_equals_the_double_sum(steps: Steps, discount: float, gae_lambda: float) -> None:
    expected = definition(steps, discount, gae_lambda, steps.duration)
    got = computed(steps.spoilt(), discount, gae_lambda, steps.duration.masked_fill(~steps.mask, 0))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-9)


@given(STEPS, SHARE, SHARE)
def test_gae_of_durations_of_one_is_gae_without(steps: Steps, discount: float, gae_lambda: float) -> None:
    got = computed(steps, discount, gae_lambda, torch.ones_like(steps.duration))
    torch.testing.assert_close(got, computed(steps, discount, gae_lambda), rtol=0, atol=1e-12)


@given(STEPS, SHARE, st.integers(1, 5))
def test_gae_of_chunks_is_that_of_their_first_steps_taken_one_by_one(steps: Steps, discount: float, size: int) -> None:
    """With λ = 1, and V(sₜ₊₁) the value that the next step has: each advantage is a return minus a value."""
    follows = ~(steps.terminated | steps.truncated)[:, :-1]
    steps.next_value[:, :-1][follows] = steps.value[:, 1:][follows]
    steps = replace(steps, mask=torch.ones_like(steps.mask))
    single = definition(steps, discount, 1.0)
    for row in range(len(steps.reward)):
        chunks = chunks_of(steps, row, size)
        first, last = [chunk[0] for chunk in chunks], [chunk[-1] for chunk in chunks]
        rewards = [sum(discount**i * float(steps.reward[row, at]) for i, at in enumerate(chunk)) for chunk in chunks]
        chunked = generalized_advantages(
            torch.tensor([rewards], dtype=torch.float64),
            steps.value[row, first][None],
            steps.next_value[row, last][None],
            steps.terminated[row, last][None],
            steps.truncated[row, last][None],
            discount=discount,
            gae_lambda=1.0,
            duration=torch.tensor([[len(chunk) for chunk in chunks]]),
        )
        torch.testing.assert_close(chunked[0], single[row, first], rtol=0, atol=1e-9)


def chunks_of(steps: Steps, row: int, size: int) -> list[list[int]]:
    """The steps of a row in chunks of `size`, shorter where an episode ends, or the row."""
    chunks: list[list[int]] = []
    for step in range(steps.reward.shape[1]):
        if (
            step
            and not steps.terminated[row, step - 1]
            and not steps.truncated[row, step - 1]
            and len(chunks[-1]) < size
        ):
            chunks[-1].append(step)
        else:
            chunks.append([step])
    return chunks


@given(STEPS, SHARE, SHARE)
def test_gae_equals_the_double_sum_on_random_shapes_cuts_and_masks(
    steps: Steps, discount: float, gae_lambda: float
) -> None:
    got, expected = computed(steps.spoilt(), discount, gae_lambda), definition(steps, discount, gae_lambda)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-9)


@given(fragmented(), SHARE, SHARE)
def test_gae_of_chained_fragments_equals_the_double_sum_in_any_order(
    cut: Fragmented, discount: float, gae_lambda: float
) -> None:
    got = chain(
        cut.names,
        **dict(zip(NAMES[:5], cut.fragments.tensors(), strict=False)),
        mask=cut.fragments.mask,
        discount=discount,
        gae_lambda=gae_lambda,
        duration=cut.fragments.duration,
    )
    for run in cut.runs():
        alone = Steps(**{name: getattr(cut.row, name)[:, run] for name in (*NAMES, "mask", "duration")})
        whole = replace(alone, mask=torch.ones_like(alone.mask))
        expected = definition(whole, discount, gae_lambda, alone.duration)
        for index, places in enumerate(cut.places):
            if places[0] in run:
                part = expected[0, [run.index(place) for place in places]]
                torch.testing.assert_close(got[index, : len(places)], part, rtol=0, atol=1e-9)
                assert not got[index, len(places) :].any()


def test_gae_with_an_infinity_in_one_episode_leaves_the_one_before_finite() -> None:
    steps = random_steps(1, 2, 9, cuts=0.0)
    steps = replace(steps, mask=torch.ones_like(steps.mask))
    steps.terminated[:, 4] = True
    clean = computed(steps, 0.9, 0.9)
    steps.reward[:, 6] = float("inf")
    spoilt = computed(steps, 0.9, 0.9)
    torch.testing.assert_close(spoilt[:, :5], clean[:, :5])
    assert spoilt[:, 5].isinf().all()


def test_gae_without_a_mask_counts_every_step() -> None:
    steps = random_steps(3, 4, 15)
    whole = replace(steps, mask=torch.ones_like(steps.mask))
    without = generalized_advantages(
        steps.reward, steps.value, steps.next_value, steps.terminated, steps.truncated, discount=0.9, gae_lambda=0.8
    )
    torch.testing.assert_close(without, definition(whole, 0.9, 0.8), rtol=0, atol=1e-9)


def test_gae_with_lambda_one_is_the_return_minus_the_value() -> None:
    reward, value = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[0.5, 0.25, 0.125]])
    no, end = torch.zeros(1, 3, dtype=torch.bool), torch.tensor([[False, False, True]])
    advantage = generalized_advantages(reward, value, value.roll(-1, 1), end, no, discount=0.5, gae_lambda=1.0)
    torch.testing.assert_close(advantage + value, torch.tensor([[3.0, 4.0, 4.0]]))


@pytest.mark.parametrize(("length", "missing"), [(1, 0.94), (8, 0.77), (16, 0.62), (32, 0.42), (64, 0.24), (128, 0.12)])
def test_gae_of_a_cut_fragment_with_zero_values_lacks_a_share_of_an_endless_ones(length: int, missing: float) -> None:
    """The numbers of docs/different-speeds.md: the mean over a fragment, of what an endless one would show."""
    discount, gae_lambda, steps = 0.99, 0.95, 1024
    reward, value, never = torch.ones(1, steps), torch.zeros(1, steps), torch.zeros(1, steps, dtype=torch.bool)

    def advantages(*tensors: Tensor) -> Tensor:
        return generalized_advantages(*tensors, discount=discount, gae_lambda=gae_lambda)

    endless = advantages(reward, value, value, never, never)[0, 0]
    got = advantages(*(each[:, :length] for each in (reward, value, value, never, never))).mean()
    assert (1 - got / endless).item() == pytest.approx(missing, abs=0.005)


def test_gae_bootstraps_a_truncated_step_and_not_a_terminated_one() -> None:
    reward, value, next_value = torch.tensor([[1.0]]), torch.tensor([[10.0]]), torch.tensor([[100.0]])
    yes, no = torch.tensor([[True]]), torch.tensor([[False]])
    cut = generalized_advantages(reward, value, next_value, no, yes, discount=0.5, gae_lambda=0.95)
    ended = generalized_advantages(reward, value, next_value, yes, no, discount=0.5, gae_lambda=0.95)
    assert (cut.item(), ended.item()) == (41.0, -9.0)


def test_gae_of_other_shapes_is_refused_with_the_shapes_in_the_message() -> None:
    good, bad = torch.zeros(2, 3), torch.zeros(2, 4)
    no = torch.zeros(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"\(2, 3\), \(2, 4\)"):
        generalized_advantages(good, bad, good, no, no, discount=0.9, gae_lambda=0.9)
