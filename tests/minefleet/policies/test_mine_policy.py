"""Policies of MineStudio as ours. What takes the real package runs by its interpreter: see `minestudio_policy`."""

import json
import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.interpreters import minestudio_python
from tests.minefleet.policies.vpt.published import model_file, net_kwargs
from torch import Tensor, nn

from minefleet.config import PolicyConfig
from minefleet.errors import ConfigError
from minefleet.policies import Policy, build
from minefleet.policies.mine_policy import MinePolicyAdapter
from minefleet.policies.vpt import load_vpt_policy
from minefleet.schema import Leaf, Schema

SCRIPT = Path(__file__).parents[2] / "minestudio_policy.py"
SCHEMA = Schema(
    obs={"image": Leaf(kind="box", shape=(2, 2, 3), dtype="uint8")},
    action={"buttons": Leaf(kind="discrete", shape=(), dtype="int64", categories=(5,))},
)


class Net(nn.Module):
    """Adds up what it sees since the last `first`."""

    def initial_state(self, batch: int) -> list[Tensor]:
        return [torch.zeros(batch, 1)]

    def forward(self, obs: Any, state: list[Tensor], context: Any) -> Any:
        total, totals = state[0], []
        seen = obs["image"].float().mean((2, 3, 4))
        for step in range(seen.shape[1]):
            total = total.masked_fill(context["first"][:, step, None], 0.0) + seen[:, step, None]
            totals.append(total)
        features = torch.stack(totals, 1)
        return (features, features), [total]


class Choice(nn.Module):
    nucleus_prob: float | None = None

    def __init__(self, categories: int) -> None:
        super().__init__()
        self.output_shape = (1, categories)
        self.linear_layer = nn.Linear(1, categories)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.linear_layer(features)
        return logits.unsqueeze(-2).log_softmax(-1)


class Normalizer(nn.Module):
    def __init__(self, seen: float) -> None:
        super().__init__()
        self.debiasing_term = nn.Parameter(torch.tensor(seen), requires_grad=False)

    def running_mean_var(self) -> tuple[Tensor, Tensor]:
        return torch.tensor([3.0]), torch.tensor([4.0])


class MinePolicy(nn.Module):
    """Made as MineStudio's are."""

    def __init__(self, categories: int = 5, seen: float = 0.0) -> None:
        super().__init__()
        self.net: nn.Module = Net()
        self.pi_head = nn.ModuleDict({"buttons": Choice(categories)})
        self.value_head = nn.Module()
        self.value_head.linear = nn.Linear(1, 1)
        self.value_head.normalizer = Normalizer(seen)

    def forward(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("its forward must not be called")


class Derived(MinePolicy):
    """A policy of somebody's own."""


def derived() -> Derived:
    return Derived()


def test_a_generator_may_make_a_policy_of_minestudio() -> None:
    policy = build(PolicyConfig(generator=f"{__name__}:derived"), SCHEMA)
    assert isinstance(policy, Policy)
    obs = {"image": torch.full((1, 3, 2, 2, 3), 2, dtype=torch.uint8)}
    output, state = policy(obs, policy.initial_state(1), torch.tensor([[False, True, False]]))
    assert state["00"].item() == 4
    torch.testing.assert_close(output.value, policy.value_head(torch.tensor([[[2.0], [2.0], [4.0]]])).squeeze(-1))
    assert policy.action_head.sample(output.params)["buttons"].shape == (1, 3)


def test_no_weight_has_two_names_and_all_of_them_travel() -> None:
    policy = MinePolicyAdapter(Derived(), SCHEMA)
    pointers = [tensor.data_ptr() for tensor in policy.state_dict().values()]
    assert len(set(pointers)) == len(pointers)
    assert sum(parameter.numel() for parameter in policy.parameters()) == 10 + 2


@pytest.mark.parametrize("seen", [0.0, 0.5])
def test_values_keep_the_units_of_the_normaliser_whether_it_has_seen_something_or_not(seen: float) -> None:
    policy = MinePolicyAdapter(MinePolicy(seen=seen), SCHEMA)
    assert policy.value_norm.denormalize(torch.tensor(1.0)).item() == 2 * 1.0 + 3.0
    assert policy.value_norm.weight.item() == seen


def test_a_policy_without_a_network_that_is_told_of_episodes_is_refused() -> None:
    policy = MinePolicy()
    policy.net = nn.Linear(1, 1)
    with pytest.raises(ConfigError, match=r"MinePolicy has no `net` with an `initial_state`.*cannot be told where"):
        MinePolicyAdapter(policy, SCHEMA)


def test_a_policy_for_other_actions_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"chooses among \{'buttons': \(6,\)\} .* takes \{'buttons': \(5,\)\}"):
        MinePolicyAdapter(MinePolicy(6), SCHEMA)


def test_a_policy_that_draws_from_less_than_its_distribution_is_refused() -> None:
    policy = MinePolicy()
    setattr(policy.pi_head["buttons"], "nucleus_prob", 0.85)  # noqa: B010  # A module's parts have no type.
    with pytest.raises(ConfigError, match=r"nucleus_prob=0\.85"):
        MinePolicyAdapter(policy, SCHEMA)


def test_a_checkpoint_of_minestudios_trainer_gives_weights_by_strict_names(tmp_path: Path) -> None:
    model, checkpoint = tmp_path / "tiny.model", tmp_path / "model.ckpt"
    model.write_bytes(pickle.dumps(model_file(net_kwargs())))
    code = "import sys, json, torch; sys.path.insert(0, sys.argv[1])\n"
    code += "from minefleet_worker.minecraft import names; names.serve()\n"
    code += "from minestudio.models import VPTPolicy\n"
    code += "torch.save(VPTPolicy(json.loads(sys.argv[2]), temperature=2.0).state_dict(), sys.argv[3])"
    services = str(SCRIPT.parents[1] / "services")
    command = [minestudio_python(), "-W", "ignore", "-c", code, services, json.dumps(net_kwargs()), str(checkpoint)]
    subprocess.run(command, capture_output=True, check=True)
    theirs = torch.load(checkpoint, weights_only=True)
    policy = load_vpt_policy(model, checkpoint)
    assert torch.equal(policy.value_head.weight, theirs["value_head.linear.weight"])
    missing = theirs.keys() - {"pi_head.camera.linear_layer.bias"}
    torch.save({name: theirs[name] for name in missing}, checkpoint)
    with pytest.raises(ConfigError, match="camera"):
        load_vpt_policy(model, checkpoint)


def test_minestudios_own_policy_says_the_same_forgets_where_it_should_and_trains() -> None:
    python = minestudio_python()
    places = [str(SCRIPT.parents[1] / folder) for folder in ("clients", "services", ".")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
    done = subprocess.run(
        [python, "-W", "ignore", str(SCRIPT)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
