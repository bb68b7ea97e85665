"""The probe stays silent on honest fragments and speaks up on every planted fault."""

import copy
import math
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from minefleet.fragment import Fragment
from minefleet.policies import Policy
from minefleet.policies.weights import load_numpy, rounded_tensors, to_numpy
from minefleet.weights.encoding import as_fetched
from minefleet_learner.batch import collate
from minefleet_learner.parity import ParityProbe

Make = Callable[..., Fragment]
MakePolicy = Callable[..., Policy]
BOUND = 1e-4


def act(policy: Policy, fragment: Fragment) -> Fragment:
    """The fragment as an actor with this policy would have recorded it, step by step."""
    state: Any = {key: torch.from_numpy(leaf)[None] for key, leaf in fragment.recurrent_state.items()}
    logps, values = [], []
    with torch.no_grad():
        for step in range(len(fragment)):
            obs = {"vector": torch.from_numpy(fragment.obs["vector"][step])[None, None]}
            output, state = policy(obs, state, torch.tensor([[bool(fragment.first[step])]]))
            logps.append(policy.action_head.logp(output.params, torch.tensor([[fragment.action[step]]])).item())
            values.append(policy.value_norm.denormalize(output.value).item())
    return replace(
        fragment,
        behaviour_logp=np.array(logps, np.float32),
        behaviour_value=np.array(values, np.float32),
    )


def recorded(make: Make, policy: Policy, count: int = 3) -> list[tuple[tuple[str, int], Fragment]]:
    state = {"gru": np.zeros(5)}
    return [
        (("s", seed), act(policy, make(seed, 8, terminated=(2,), truncated=(5,), state=state, version=4)))
        for seed in range(count)
    ]


def probe(policy: Policy, version: int = 4, rounded: Collection[str] = ()) -> ParityProbe:
    other = copy.deepcopy(policy)
    for parameter in other.parameters():
        torch.nn.init.constant_(parameter, 0.5)
    made = ParityProbe(other, versions=3, context_length=4, rounded=rounded)
    made.remember(version, to_numpy(policy))
    return made


@pytest.fixture
def policy(make_policy: MakePolicy) -> Policy:
    made = make_policy(5, normalize_obs=True)
    assert made.obs_norm is not None
    made.obs_norm.absorb([{"vector": torch.tensor([[1.0, 2.0, 3.0], [5.0, 4.0, 3.5]])}])
    made.value_norm.update(torch.tensor([3.0, 5.0, 20.0]), made.value_head)
    torch.nn.init.normal_(made.get_parameter("action_head.linear.weight"))
    return made


def test_honest_fragments_pass_also_after_the_learner_has_moved_on(make_fragment: Make, policy: Policy) -> None:
    fragments = recorded(make_fragment, policy)
    made = probe(policy)
    torch.nn.init.zeros_(policy.value_head.weight)
    parity = made.compare(collate(fragments))
    assert parity.steps == 16
    assert parity.logp < BOUND
    assert parity.value < BOUND


def test_the_probe_accounts_for_the_rounding_of_what_actors_fetch(make_fragment: Make, policy: Policy) -> None:
    rounded = rounded_tensors(policy, "bfloat16")
    actor = copy.deepcopy(policy)
    load_numpy(actor, as_fetched(to_numpy(policy), rounded))
    batch = collate(recorded(make_fragment, actor))
    parity = probe(policy, rounded=rounded).compare(batch)
    assert parity.steps == 16
    assert max(parity.logp, parity.value) < BOUND
    forgetful = probe(policy).compare(batch)
    assert min(forgetful.logp, forgetful.value) > BOUND


@pytest.mark.parametrize(
    "fault",
    [
        lambda f: replace(f, first=np.zeros_like(f.first)),
        lambda f: replace(f, action=(f.action + 1) % 4),
        lambda f: replace(f, recurrent_state={"gru": f.recurrent_state["gru"] + 1}),
        lambda f: replace(f, behaviour_logp=f.behaviour_logp.astype(np.float16).astype(np.float32) * 1.01),
        lambda f: replace(f, obs={"vector": f.obs["vector"][::-1].copy()}),
    ],
    ids=["first-ignored", "actions-swapped", "stale-state", "another-dtype", "observations-shuffled"],
)
def test_planted_faults_are_found(make_fragment: Make, policy: Policy, fault: Callable[[Fragment], Fragment]) -> None:
    fragments = [(name, fault(fragment)) for name, fragment in recorded(make_fragment, policy)]
    parity = probe(policy).compare(collate(fragments))
    assert max(parity.logp, parity.value) > BOUND


def test_normalisers_that_were_not_broadcast_are_found(make_fragment: Make, policy: Policy) -> None:
    fragments = recorded(make_fragment, policy)
    policy.value_norm.mean += 1
    assert probe(policy).compare(collate(fragments)).value > BOUND


def test_statistics_of_observations_that_were_not_broadcast_are_found(make_fragment: Make, policy: Policy) -> None:
    fragments = recorded(make_fragment, policy)
    assert policy.obs_norm is not None
    policy.obs_norm.absorb([{"vector": torch.zeros(1, 3)}])
    assert probe(policy).compare(collate(fragments)).logp > BOUND


def test_only_whole_fragments_of_a_remembered_version_are_compared(make_fragment: Make, policy: Policy) -> None:
    (name, fragment), *_ = recorded(make_fragment, policy)
    mixed = replace(fragment, policy_version=np.array([3] + [4] * 7, np.uint32))
    made = probe(policy)
    assert made.compare(collate([(name, mixed)])).steps == 0
    assert math.isnan(made.compare(collate([(name, mixed)])).logp)
    assert made.compare(collate([(name, mixed), (("t", 0), fragment)])).steps == 8
    for version in (5, 6, 7):
        made.remember(version, to_numpy(policy))
    assert made.compare(collate([(name, fragment)])).steps == 0
