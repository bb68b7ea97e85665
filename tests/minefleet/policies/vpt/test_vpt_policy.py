import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minefleet.core.tree import Tree, flatten, tree_map
from minefleet.policies import PolicyOutput
from minefleet.policies.precision import compute
from minefleet.policies.vpt import PRESETS, HierarchicalHead, VPTPolicy
from minefleet.policies.vpt.architecture import BUTTONS, CAMERA, changed

TINY = changed(PRESETS["tiny"], {"memory": 6, "image_shape": [16, 16, 3]})
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module")
def policy() -> VPTPolicy:
    torch.manual_seed(0)
    return VPTPolicy(TINY).eval()


def images(generator: torch.Generator, batch: int, steps: int) -> Tensor:
    return torch.randint(0, 256, (batch, steps, *TINY.image_shape), dtype=torch.uint8, generator=generator)


def leaves(output: PolicyOutput) -> list[Tensor]:
    return [output.params["buttons"], output.params["camera"], output.value]


@torch.inference_mode()
def run(policy: VPTPolicy, image: Tensor, state: Tree, first: Tensor) -> tuple[PolicyOutput, Tree]:
    return policy({"image": image}, state, first)  # type: ignore[no-any-return]  # A module's result has no type.


@settings(max_examples=40)
@given(seed=seeds, steps=st.integers(1, 15), data=st.data())
def test_vpt_policy_forgets_exactly_the_steps_before_a_first(
    policy: VPTPolicy, seed: int, steps: int, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, steps - 1))
    generator = torch.Generator().manual_seed(seed)
    _, used = run(policy, images(generator, 1, 9), policy.initial_state(1), torch.zeros(1, 9, dtype=torch.bool))
    first = torch.zeros(1, steps, dtype=torch.bool)
    first[:, at] = True
    after = images(generator, 1, steps - at)
    begins = torch.cat([images(generator, 1, at), after], 1)
    others = torch.cat([torch.zeros_like(begins[:, :at]), after], 1)
    output, _ = run(policy, begins, used, first)
    fresh, _ = run(policy, others, policy.initial_state(1), first)
    for ours, wanted in zip(leaves(output), leaves(fresh), strict=True):
        assert torch.equal(ours[:, at:], wanted[:, at:])
    alone, _ = run(policy, after, policy.initial_state(1), torch.zeros(1, steps - at, dtype=torch.bool))
    for ours, wanted in zip(leaves(output), leaves(alone), strict=True):
        torch.testing.assert_close(ours[:, at:], wanted, rtol=0, atol=1e-5)


@settings(max_examples=40)
@given(seed=seeds, cuts=st.lists(st.integers(1, 8), min_size=1, max_size=6))
def test_vpt_policy_over_a_sequence_cut_anywhere_equals_the_whole(
    policy: VPTPolicy, seed: int, cuts: list[int]
) -> None:
    generator = torch.Generator().manual_seed(seed)
    image = images(generator, 2, sum(cuts))
    first = torch.rand(2, sum(cuts), generator=generator) < 0.2
    whole, last = run(policy, image, policy.initial_state(2), first)
    state, outputs = policy.initial_state(2), []
    for seen, starts in zip(torch.split(image, cuts, 1), torch.split(first, cuts, 1), strict=True):
        output, state = run(policy, seen, state, starts)
        outputs.append(output)
    for wanted, *parts in zip(leaves(whole), *(leaves(output) for output in outputs), strict=True):
        torch.testing.assert_close(torch.cat(parts, 1), wanted, rtol=0, atol=1e-5)
    tree_map(lambda ours, wanted: torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-5), state, last)


def test_vpt_policy_ignores_steps_further_back_than_its_memory(policy: VPTPolicy) -> None:
    """Each block attends to `memory` steps with its own, so that two see 2·(memory - 1) steps back."""
    reach = TINY.blocks * (TINY.memory - 1)
    image = images(torch.Generator().manual_seed(1), 1, reach + 2)
    other = image.clone()
    other[:, 0] = 255 - other[:, 0]
    first = torch.zeros(1, reach + 2, dtype=torch.bool)
    (one, _), (two, _) = (run(policy, each, policy.initial_state(1), first) for each in (image, other))
    assert torch.equal(one.value[:, -1], two.value[:, -1])
    assert not torch.equal(one.value[:, -2], two.value[:, -2])


def test_vpt_policy_parameters_all_have_a_finite_gradient() -> None:
    policy = VPTPolicy(TINY)
    generator = torch.Generator().manual_seed(2)
    first = torch.rand(2, 9, generator=generator) < 0.2
    output, _ = policy({"image": images(generator, 2, 9)}, policy.initial_state(2), first)
    action = policy.action_head.sample(output.params, generator=generator)
    (policy.action_head.logp(output.params, action).mean() + output.value.square().mean()).backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.any(), name


def test_vpt_policy_initial_state_is_fresh_each_time(policy: VPTPolicy) -> None:
    tree_map(torch.Tensor.fill_, policy.initial_state(2), tree_map(lambda _: 1, policy.initial_state(2)))
    assert not any(leaf.any() for leaf in flatten(policy.initial_state(2)).values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_leaves_outputs_and_state_in_float32(policy: VPTPolicy, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    image, first = images(generator, 2, 9), torch.rand(2, 9, generator=generator) < 0.2
    with torch.inference_mode():
        exact, _ = run(policy, image, policy.initial_state(2), first)
        rough, state = compute(policy, {"image": image}, policy.initial_state(2), first, dtype)
    for ours, wanted in zip(leaves(rough), leaves(exact), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, wanted, rtol=0, atol=0.25)
    assert {leaf.dtype for leaf in flatten(state).values()} == {torch.bool, torch.float32}


def test_vpt_head_equals_its_definition() -> None:
    torch.manual_seed(4)
    head = HierarchicalHead(8, temperature=2.0)
    features = 30 * torch.randn(2, 3, 8)
    params = head(features)
    action = {"buttons": torch.randint(BUTTONS, (2, 3)), "camera": torch.randint(CAMERA, (2, 3))}
    logp, entropy = torch.zeros(2, 3), torch.zeros(2, 3)
    for key, linear in zip(("buttons", "camera"), (head.heads[f"key_{key}"].linear for key in head.names), strict=True):
        assert isinstance(linear, torch.nn.Linear)
        for row in range(2):
            for step in range(3):
                scaled = (linear(features[row, step]) / 2.0).double()
                probability = scaled.exp() / scaled.exp().sum()
                torch.testing.assert_close(params[key][row, step].double(), probability.log(), rtol=0, atol=1e-5)
                logp[row, step] += probability[action[key][row, step]].log().float()
                entropy[row, step] -= (probability * probability.log()).sum().float()
    torch.testing.assert_close(head.logp(params, action), logp)
    torch.testing.assert_close(head.entropy(params), entropy)
    assert set(head.entropies(params)) == {"buttons", "camera"}
    assert torch.equal(head.sample(params, deterministic=True)["camera"], params["camera"].argmax(-1))
    assert head.kl(params, params).abs().max() < 1e-6
    flat = tree_map(torch.zeros_like, params)
    uniform = math.log(BUTTONS) + math.log(CAMERA)
    torch.testing.assert_close(head.kl(params, flat), uniform - entropy, rtol=1e-4, atol=1e-5)


def test_vpt_policy_presses_no_forbidden_button(policy: VPTPolicy) -> None:
    mask = {"buttons": torch.zeros(2, 9, BUTTONS, dtype=torch.int8)}
    mask["buttons"][..., 7] = 1
    obs = {"image": images(torch.Generator().manual_seed(5), 2, 9), "action_mask": mask}
    with torch.inference_mode():
        output, _ = policy(obs, policy.initial_state(2), torch.zeros(2, 9, dtype=torch.bool))
    assert (policy.action_head.sample(output.params)["buttons"] == 7).all()
