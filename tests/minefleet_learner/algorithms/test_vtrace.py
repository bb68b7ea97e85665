"""V-trace against its definition, the sum of products, written slowly."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.minefleet_learner.random_steps import NAMES, SHARE, STEPS, Fragmented, Steps, fragmented, random_steps
from torch import Tensor

from minefleet_learner.algorithms.fragment_chain_advantages import chain_vtrace
from minefleet_learner.algorithms.gae import generalized_advantages
from minefleet_learner.algorithms.vtrace import VTrace, vtrace

BAR = st.floats(0.1, 3)


def weight(log_ratio: float, bar: float) -> float:
    return min(bar, math.exp(log_ratio))


def targets(
    steps: Steps, row: int, run: list[int], discount: float, gae_lambda: float, rho_bar: float, c_bar: float
) -> dict[int, float]:
    """v_s = V(x_s) + Σ_t (Π_{s ≤ i < t} γ^d_i c_i) ρ_t (r_t + γ^d_t V(x_{t+1}) - V(x_t)), eq. 1, over one run."""
    found = {}
    for start in run:
        found[start] = float(steps.value[row, start])
        carried = 1.0
        for step in range(start, run[-1] + 1):
            log_ratio = float(steps.log_ratio[row, step])
            after = 0.0 if steps.terminated[row, step] else float(steps.next_value[row, step])
            gamma = discount ** int(steps.duration[row, step])
            difference = float(steps.reward[row, step]) + gamma * after - float(steps.value[row, step])
            found[start] += carried * weight(log_ratio, rho_bar) * difference
            if steps.terminated[row, step] or steps.truncated[row, step]:
                break
            carried *= gamma * gae_lambda * weight(log_ratio, c_bar)
    return found


def definition(
    steps: Steps, runs: list[tuple[int, list[int]]], discount: float, gae_lambda: float, rho_bar: float, c_bar: float
) -> VTrace:
    """V-trace over runs of steps, each in one row; 0 elsewhere."""
    target, advantage = torch.zeros_like(steps.reward), torch.zeros_like(steps.reward)
    for row, run in runs:
        found = targets(steps, row, run, discount, gae_lambda, rho_bar, c_bar)
        for step in run:
            after = 0.0 if steps.terminated[row, step] else float(steps.next_value[row, step])
            over = bool(steps.terminated[row, step] or steps.truncated[row, step]) or step == run[-1]
            beyond = 0.0 if over else found[step + 1] - float(steps.value[row, step + 1])
            target[row, step] = found[step]
            gamma = discount ** int(steps.duration[row, step])
            advantage[row, step] = float(steps.reward[row, step] - steps.value[row, step]) + gamma * (
                after + gae_lambda * beyond
            )
    return VTrace(advantage=advantage, target=target)


def unbroken(mask: Tensor) -> list[tuple[int, list[int]]]:
    """The runs of steps between holes, each with its row."""
    runs: list[tuple[int, list[int]]] = []
    for row, step in mask.nonzero().tolist():
        if runs and runs[-1][0] == row and runs[-1][1][-1] == step - 1:
            runs[-1][1].append(step)
        else:
            runs.append((row, [step]))
    return runs


def equal(one: VTrace, other: VTrace) -> None:
    torch.testing.assert_close(one.target, other.target, rtol=0, atol=1e-9)
    torch.testing.assert_close(one.advantage, other.advantage, rtol=0, atol=1e-9)


@given(STEPS, SHARE, SHARE, BAR, BAR)
def test_vtrace_equals_its_definition_on_random_shapes_cuts_and_masks(
    steps: Steps, discount: float, gae_lambda: float, rho_bar: float, c_bar: float
) -> None:
    got = vtrace(
        *steps.spoilt().tensors(),
        discount=discount,
        gae_lambda=gae_lambda,
        rho_bar=rho_bar,
        c_bar=c_bar,
        mask=steps.mask,
        duration=steps.duration,
    )
    equal(got, definition(steps, unbroken(steps.mask), discount, gae_lambda, rho_bar, c_bar))


@given(fragmented(), SHARE, SHARE, BAR, BAR)
def test_vtrace_of_chained_fragments_equals_its_definition_over_runs_without_gaps(
    cut: Fragmented, discount: float, gae_lambda: float, rho_bar: float, c_bar: float
) -> None:
    got = chain_vtrace(
        cut.names,
        **dict(zip(NAMES, cut.fragments.tensors(), strict=True)),
        mask=cut.fragments.mask,
        duration=cut.fragments.duration,
        discount=discount,
        gae_lambda=gae_lambda,
        rho_bar=rho_bar,
        c_bar=c_bar,
    )
    expected = definition(cut.row, [(0, run) for run in cut.runs()], discount, gae_lambda, rho_bar, c_bar)
    for index, places in enumerate(cut.places):
        length = len(places)
        torch.testing.assert_close(got.target[index, :length], expected.target[0, places], rtol=0, atol=1e-9)
        torch.testing.assert_close(got.advantage[index, :length], expected.advantage[0, places], rtol=0, atol=1e-9)
        assert not got.target[index, length:].any()
        assert not got.advantage[index, length:].any()


@given(STEPS, SHARE, SHARE)
def test_vtrace_on_data_of_its_own_policy_equals_gae(steps: Steps, discount: float, gae_lambda: float) -> None:
    own = replace(steps, log_ratio=torch.zeros_like(steps.log_ratio)).tensors()
    got = vtrace(*own, discount=discount, gae_lambda=gae_lambda, rho_bar=1.0, c_bar=1.0, mask=steps.mask)
    advantage = generalized_advantages(*own[:5], discount=discount, gae_lambda=gae_lambda, mask=steps.mask)
    target = (advantage + steps.value).masked_fill(~steps.mask, 0.0)
    equal(got, VTrace(advantage=advantage, target=target))


def test_vtrace_ratio_too_large_for_a_float_counts_as_the_bar() -> None:
    zero, no = torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.bool)
    got = vtrace(zero + 3, zero, zero, no, no, zero + 1e4, discount=0.9, gae_lambda=1.0, rho_bar=2.0, c_bar=1.0)
    assert (got.target.item(), got.advantage.item()) == (6.0, 3.0)


def test_vtrace_targets_have_the_values_of_the_policy_between_as_fixed_point() -> None:
    """One state, two actions that pay 0 and 1, γ = 0: under ρ̄ the policy learned about is π ∝ min(ρ̄ μ, π)."""
    behaviour, policy, rho_bar = torch.tensor([0.8, 0.2]), torch.tensor([0.1, 0.9]), 1.5
    between = torch.minimum(rho_bar * behaviour, policy)
    value = between[1] / between.sum()
    reward, no = torch.tensor([[0.0, 1.0]]), torch.zeros(1, 2, dtype=torch.bool)
    got = vtrace(
        reward,
        value.expand(1, 2),
        torch.zeros(1, 2),
        ~no,
        no,
        (policy / behaviour).log().unsqueeze(0),
        discount=0.9,
        gae_lambda=1.0,
        rho_bar=rho_bar,
        c_bar=1.0,
    )
    assert (behaviour * got.target[0]).sum().item() == pytest.approx(value.item(), abs=1e-6)


def test_vtrace_of_other_shapes_is_refused_with_the_shapes_in_the_message() -> None:
    tensors = [*random_steps(0, 2, 3).tensors()[:5], torch.zeros(2, 4)]
    with pytest.raises(ValueError, match=r"\(2, 3\), \(2, 4\)"):
        vtrace(*tensors, discount=0.9, gae_lambda=0.9, rho_bar=1.0, c_bar=1.0)
