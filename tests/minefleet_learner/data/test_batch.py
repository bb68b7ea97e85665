"""Collation and recomputed values, against evaluation step by step."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from minefleet.config import TrainConfig
from minefleet.core.errors import RejectedError
from minefleet.core.fragment import Fragment
from minefleet.core.tree import Tree, tree_map
from minefleet.policies import Policy
from minefleet.policies.layers.mergeable_moments import moments_of
from minefleet_learner.algorithms.gae import generalized_advantages
from minefleet_learner.data.batch import collate
from minefleet_learner.targets.forward_passes import evaluate_pieces, gather, select_seen
from minefleet_learner.targets.value_and_advantage_estimates import cut_between, estimate, recompute

Make = Callable[..., Fragment]
MakePolicy = Callable[..., Policy]
STATE = {"gru": np.zeros(5)}


def mixed(make: Make, state: Tree) -> list[Fragment]:
    return [
        make(0, 8, state=state),
        make(1, 5, terminated=(4,), truncated=(1,), state=state),
        make(2, 1, state=state),
        make(3, 7, terminated=(0, 3), truncated=(2, 6), state=state),
        make(4, 1, terminated=(0,), state=state, first=np.array([True])),
    ]


def named(fragments: Sequence[Fragment]) -> list[tuple[tuple[str, int], Fragment]]:
    return [((f"s{index}", 0), fragment) for index, fragment in enumerate(fragments)]


def slow_values(policy: Policy, fragment: Fragment) -> tuple[list[float], list[float]]:
    """V(sₜ) and V(sₜ₊₁), one observation at a time; the next one's state is the state after step t."""
    values, nexts = [], []
    state = tree_map(lambda leaf: torch.from_numpy(leaf)[None], fragment.recurrent_state)

    def look(obs: Tree, state: Tree, first: bool) -> tuple[float, Tree]:
        batch = tree_map(lambda leaf: torch.from_numpy(leaf)[None, None], obs)
        with torch.no_grad():
            output, after = policy(batch, state, torch.tensor([[first]]))
        return float(policy.value_norm.denormalize(output.value)), after

    cuts = {int(step): index for index, step in enumerate(fragment.cut_index)}
    for step in range(len(fragment)):
        obs = tree_map(lambda leaf, t=step: leaf[t], fragment.obs)
        value, state = look(obs, state, bool(fragment.first[step]))
        values.append(value)
        if fragment.terminated[step]:
            nexts.append(0.0)
        elif step in cuts:
            nexts.append(look(tree_map(lambda leaf, t=step: leaf[cuts[t]], fragment.cut_obs), state, False)[0])
        else:
            nexts.append(look(tree_map(lambda leaf, t=step: leaf[t + 1], fragment.obs), state, False)[0])
    return values, nexts


@pytest.mark.parametrize("gru_size", [0, 5])
@pytest.mark.parametrize("context_length", [1, 3, 64])
@pytest.mark.parametrize("rows_per_pass", [1, 2, 8])
def test_recomputed_values_equal_evaluation_step_by_step(
    make_fragment: Make, make_policy: MakePolicy, gru_size: int, context_length: int, rows_per_pass: int
) -> None:
    policy = make_policy(gru_size)
    policy.value_norm.absorb(moments_of(torch.tensor([3.0, 5.0, 20.0])), policy.value_head)
    fragments = mixed(make_fragment, STATE if gru_size else {})
    config = TrainConfig(context_length=context_length, inference_batch_size_per_gpu=rows_per_pass)
    got = recompute(policy, collate(named(fragments)), config)
    for row, fragment in enumerate(fragments):
        slow_value, slow_next = slow_values(policy, fragment)
        length = len(fragment)
        np.testing.assert_allclose(got.value[row, :length], slow_value, atol=1e-5)
        np.testing.assert_allclose(got.next_value[row, :length], slow_next, atol=1e-5)
        assert not got.value[row, length:].any()
        assert not got.next_value[row, length:].any()


@pytest.mark.parametrize("gru_size", [0, 5])
def test_select_seen_returns_each_observation_of_the_rows_once(make_fragment: Make, gru_size: int) -> None:
    fragments = mixed(make_fragment, STATE if gru_size else {})
    batch = collate(named(fragments))
    chosen = select_seen(batch, torch.tensor([3, 0]), whole_rows=gru_size > 0)
    obs = gather(batch.seen, chosen.seen)["vector"][chosen.mask]
    expected = np.concatenate([fragments[row].obs["vector"] for row in (3, 0)])
    assert len(obs) == len(expected) + 3
    acted_on = torch.cat([batch.position[row][batch.mask[row]] for row in (3, 0)])
    np.testing.assert_array_equal(obs[torch.isin(chosen.seen[chosen.mask], acted_on)], expected)


def test_a_fragment_without_the_observation_after_a_cut_is_refused(make_fragment: Make) -> None:
    good = make_fragment(0, 4, truncated=(1,))
    bad = replace(good, cut_index=good.cut_index[1:], cut_obs={"vector": good.cut_obs["vector"][1:]})
    with pytest.raises(RejectedError, match="s1/0"):
        collate(named([good, bad]))


def test_an_environment_that_failed_behind_a_fragment_cuts_the_chain(make_fragment: Make) -> None:
    before, after = make_fragment(0, 3), make_fragment(1, 4)
    batch = collate([(("a", 7), before), (("a", 8), after)])
    assert not cut_between(batch).any()
    after = replace(after, first=np.array([True, False, False, False]))
    batch = collate([(("a", 8), after), (("a", 7), before)])
    assert cut_between(batch).nonzero().tolist() == [[1, 2]]


@pytest.mark.parametrize("gru_size", [0, 5])
@pytest.mark.parametrize("rows_per_pass", [1, 8])
def test_recomputed_log_probabilities_are_those_of_the_actions_in_their_own_steps(
    make_fragment: Make, make_policy: MakePolicy, gru_size: int, rows_per_pass: int
) -> None:
    policy, fragments = make_policy(gru_size), mixed(make_fragment, STATE if gru_size else {})
    config = TrainConfig(context_length=3, inference_batch_size_per_gpu=rows_per_pass)
    batch = collate(named(fragments))
    got = recompute(policy, batch, config).logp
    for row, fragment in enumerate(fragments):
        with torch.no_grad():
            steps = torch.arange(len(fragment)) + row * batch.mask.shape[1]
            params = evaluate_pieces(policy, batch, torch.tensor([row]), steps[None], {}).params
        logp = torch.log_softmax(params[0], -1)
        expected = [float(logp[step, action]) for step, action in enumerate(fragment.action)]
        np.testing.assert_allclose(got[row, : len(fragment)], expected, atol=1e-5)
        assert not got[row, len(fragment) :].any()


@pytest.mark.parametrize("off_policy", ["clip", "decoupled", "vtrace"])
@pytest.mark.parametrize("gae_values", ["behaviour", "recomputed"])
def test_estimate_recomputes_logp_unless_clip_uses_recorded_values(
    make_fragment: Make, make_policy: MakePolicy, gae_values: str, off_policy: str
) -> None:
    config = TrainConfig(gae_values=gae_values, off_policy=off_policy)  # type: ignore[arg-type]
    got = estimate(make_policy(), collate(named([make_fragment(3)])), config)
    assert (got.proximal_logp is None) == (gae_values == "behaviour" and off_policy == "clip")


@pytest.mark.parametrize("gae_values", ["behaviour", "recomputed"])
def test_estimate_uses_the_values_that_gae_values_names(
    make_fragment: Make, make_policy: MakePolicy, gae_values: str
) -> None:
    policy, fragment = make_policy(), make_fragment(3, 6, truncated=(2,), terminated=(4,))
    config = TrainConfig(gae_values=gae_values, discount=0.9, gae_lambda=0.8)  # type: ignore[arg-type]
    got = estimate(policy, collate(named([fragment])), config)
    value, next_value = (
        (fragment.behaviour_value, fragment.next_value)
        if gae_values == "behaviour"
        else (np.array(values, np.float32) for values in slow_values(policy, fragment))
    )
    arrays = (fragment.reward, value, next_value, fragment.terminated, fragment.truncated)
    expected = generalized_advantages(
        *(torch.from_numpy(array)[None] for array in arrays), discount=0.9, gae_lambda=0.8
    )
    torch.testing.assert_close(got.advantage, expected)
    torch.testing.assert_close(got.target, expected + torch.from_numpy(value)[None])
