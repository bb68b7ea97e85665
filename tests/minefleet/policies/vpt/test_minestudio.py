"""Our VPT is MineStudio's: with the same weights it says the same, for whole sequences."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.interpreters import minestudio_python
from tests.minefleet.policies.vpt.published import net_kwargs, net_kwargs_1x
from torch import Tensor

from minefleet.core.tree import Tree
from minefleet.policies.vpt import VPTPolicy
from minefleet.policies.vpt.architecture import from_kwargs
from minefleet.policies.vpt.weight_names import our_weights

HERE = Path(__file__).parent
BOUND = 1e-5
STEPS = 300


def theirs(folder: Path, net: dict[str, Any], cuts: list[int], first: list[tuple[int, int]]) -> dict[str, Any]:
    arguments, out = folder / "arguments.json", folder / "out.pt"
    arguments.write_text(json.dumps({"net": net, "cuts": cuts, "first": first, "batch": 2, "seed": 3}))
    command = [minestudio_python(), str(HERE / "minestudio_vpt.py"), str(arguments), str(out)]
    subprocess.run(command, check=True, timeout=300)
    return torch.load(out, weights_only=True)  # type: ignore[no-any-return]  # A dict of tensors.


def ours(net: dict[str, Any], weights: dict[str, Tensor]) -> VPTPolicy:
    policy = VPTPolicy(from_kwargs(net, {"temperature": 2.0}))
    policy.load_state_dict(our_weights(weights))
    return policy.eval()


@torch.inference_mode()
def run(policy: VPTPolicy, image: Tensor, first: Tensor, cuts: list[int]) -> tuple[dict[str, Tensor], Tree]:
    state = policy.initial_state(len(image))
    made: list[dict[str, Tensor]] = []
    for seen, starts in zip(torch.split(image, cuts, 1), torch.split(first, cuts, 1), strict=True):
        output, state = policy({"image": seen}, state, starts)
        reward_units = policy.value_norm.denormalize(output.value)
        entropy = policy.action_head.entropy(output.params)
        made.append(output.params | {"value": output.value, "reward_units": reward_units, "entropy": entropy})
    return {key: torch.cat([each[key] for each in made], 1) for key in made[0]}, state


def assert_same(expected: dict[str, Any], outputs: dict[str, Tensor], state: Tree) -> None:
    for name, output in outputs.items():
        torch.testing.assert_close(output.float(), expected[name], rtol=0, atol=BOUND)
    flat = iter(expected["state"])
    for index in range(len(state) - 1):
        mask, keys, values = next(flat), next(flat), next(flat)
        assert torch.equal(state["remembered"], mask.squeeze(1))
        torch.testing.assert_close(state[f"block{index}"]["keys"], keys, rtol=0, atol=BOUND)
        torch.testing.assert_close(state[f"block{index}"]["values"], values, rtol=0, atol=BOUND)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of a tiny one, more steps than it remembers."""
    first = [(0, 0), (1, 0), (0, 60), (0, 61), (1, 200)]
    return theirs(tmp_path_factory.mktemp("long"), net_kwargs(), [STEPS], first)


@pytest.mark.parametrize("cuts", [[1] * STEPS, [100] * 3, [STEPS], [7, 128, 1, 129, 35]], ids=len)
def test_vpt_policy_of_tiny_size_equals_minestudios_stepwise_and_in_chunks(
    long: dict[str, Any], cuts: list[int]
) -> None:
    policy = ours(net_kwargs(), long["weights"])
    assert_same(long, *run(policy, long["image"], long["first"], cuts))


def test_vpt_policy_with_a_norm_before_the_transformer_equals_minestudios(tmp_path: Path) -> None:
    net = net_kwargs() | {"use_pre_lstm_ln": True, "impala_kwargs": {}}
    expected = theirs(tmp_path, net, [9], [(0, 0), (1, 4)])
    assert_same(expected, *run(ours(net, expected["weights"]), expected["image"], expected["first"], [9]))


def test_vpt_policy_of_the_smallest_published_size_equals_minestudios(tmp_path: Path) -> None:
    expected = theirs(tmp_path, net_kwargs_1x(), [4, 1, 1], [(0, 0), (1, 2)])
    policy = ours(net_kwargs_1x(), expected["weights"])
    assert_same(expected, *run(policy, expected["image"], expected["first"], [1, 5]))
