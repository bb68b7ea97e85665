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
from minefleet.core.errors import ConfigError
from minefleet.core.schema import Leaf, Schema
from minefleet.policies import Policy, build
from minefleet.policies.minestudio.adapter import MinePolicyAdapter
from minefleet.policies.minestudio.reset_probe import probe
from minefleet.policies.policy import PolicyOutput, twin
from minefleet.policies.vpt import load_vpt_policy
from minefleet_learner.training.freeze import train_only

SCRIPT = Path(__file__).parents[3] / "minestudio_policy.py"
SIDE, BATCH, STEPS = 2, 2, 6
IMAGE = Leaf(kind="box", shape=(SIDE, SIDE, 3), dtype="uint8", low=0, high=255)
ACTION = {"buttons": Leaf(kind="discrete", shape=(), dtype="int64", categories=(5,))}
SCHEMA = Schema(obs={"image": IMAGE}, action=ACTION)


class ResidualRecurrentBlocks(nn.Module):
    """Called as MineStudio's memory is: adds up what it sees since the last `first`."""

    def forward(self, seen: Tensor, first: Tensor, state: list[Tensor]) -> Any:
        total, totals = state[0], []
        for step in range(seen.shape[1]):
            total = total.masked_fill(first[:, step, None], 0.0) + seen[:, step]
            totals.append(total)
        return torch.stack(totals, 1), [total]


class Choice(nn.Module):
    nucleus_prob: float | None = None

    def __init__(self, categories: int) -> None:
        super().__init__()
        self.linear_layer = nn.Linear(1, categories)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.linear_layer(features)
        return logits.unsqueeze(-2).log_softmax(-1)


class Choices(nn.ModuleDict):
    def forward(self, features: Tensor) -> dict[str, Tensor]:
        return {key: part(features) for key, part in self.items()}


class Normalizer(nn.Module):
    def __init__(self, seen: float) -> None:
        super().__init__()
        self.debiasing_term = nn.Parameter(torch.tensor(seen), requires_grad=False)

    def running_mean_var(self) -> tuple[Tensor, Tensor]:
        return torch.tensor([3.0]), torch.tensor([4.0])


class Scaled(nn.Module):
    def __init__(self, seen: float) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.normalizer = Normalizer(seen)

    def forward(self, features: Tensor) -> Tensor:
        value: Tensor = self.linear(features)
        return value


class MinePolicy(nn.Module):
    """Made as MineStudio's are, and as forgetful of where episodes begin."""

    def __init__(self, categories: int = 5, seen: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.recurrent: nn.Module = ResidualRecurrentBlocks()
        self.pi_head = Choices({"buttons": Choice(categories)})
        self.value_head: nn.Module = Scaled(seen)

    def initial_state(self, batch_size: int) -> Any:
        return [torch.zeros(batch_size, 1)]

    def forward(self, input: Any, state_in: Any) -> Any:  # noqa: A002  # MineStudio's names.
        features, after = self.remember(self.seen(input), state_in)
        return {"pi_logits": self.pi_head(features), "vpred": self.value_head(features)}, after

    def seen(self, obs: Any) -> Tensor:
        images: Tensor = obs["image"]
        return images.float().mean((2, 3, 4), keepdim=True).reshape(*images.shape[:2], 1) / 255

    def remember(self, seen: Tensor, state: Any) -> Any:
        return self.recurrent(seen, torch.zeros(seen.shape[:2], dtype=torch.bool), state)


class Masked(MinePolicy):
    """Reads what no callback has declared."""

    def seen(self, obs: Any) -> Tensor:
        mask: Tensor = obs["segment"]["obj_mask"]
        return super().seen(obs) + mask


class Derived(MinePolicy):
    """A policy of somebody's own."""


class Gru(MinePolicy):
    """Has a memory of its own, and a state of its own shape."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(1, 1, batch_first=True)

    def initial_state(self, batch_size: int) -> Any:
        return {"hidden": torch.ones(batch_size, 1), "nothing": None}

    def remember(self, seen: Tensor, state: Any) -> Any:
        features, after = self.recurrent(seen, state["hidden"].unsqueeze(0))
        return features, {"hidden": after[0], "nothing": None}


class Without(MinePolicy):
    """Has no memory, dropout, and a value head that is just a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.9)
        self.value_head = nn.Sequential(nn.Tanh(), nn.Linear(1, 1))

    def initial_state(self, batch_size: int) -> Any:
        return []

    def remember(self, seen: Tensor, state: Any) -> Any:
        return self.dropout(seen), state


class Squashed(Without):
    """Squashes its values."""

    def __init__(self) -> None:
        super().__init__()
        self.value_head = nn.Sequential(nn.Linear(1, 1), nn.Tanh())


class Whole(Without):
    """Sees all steps of a call in each of them."""

    def remember(self, seen: Tensor, state: Any) -> Any:
        return seen.mean(1, keepdim=True).expand_as(seen), state


class Hoarder(Without):
    """Remembers outside of its state."""

    total = 0.0

    def remember(self, seen: Tensor, state: Any) -> Any:
        self.total = self.total + float(seen.sum())
        return seen + self.total, state


class Crowd(Without):
    """Sees other environments."""

    def remember(self, seen: Tensor, state: Any) -> Any:
        return seen + seen.mean(0), state


class Greedy(Gru):
    """Has a memory under MineStudio's name that does not forget when it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told = ResidualRecurrentBlocks()

    def remember(self, seen: Tensor, state: Any) -> Any:
        self.told(seen, torch.zeros(seen.shape[:2], dtype=torch.bool), [torch.zeros(len(seen), 1)])
        return super().remember(seen, state)


class Guided(MinePolicy):
    """Follows the first text of a call, as GROOT does."""

    def seen(self, obs: Any) -> Tensor:
        assert all(len(row) == obs["image"].shape[1] for row in obs["say"])
        return super().seen(obs) + len(obs["say"][0][0])


def derived() -> Derived:
    return Derived()


def adapted(policy: Any, schema: Schema = SCHEMA) -> MinePolicyAdapter:
    adapter = MinePolicyAdapter(policy, schema)
    probe(adapter, schema)
    return adapter


def images(seed: int = 0) -> Any:
    pixels = torch.randint(0, 256, (BATCH, STEPS, SIDE, SIDE, 3), generator=torch.Generator().manual_seed(seed))
    return {"image": pixels.to(torch.uint8)}


def begins(*places: tuple[int, int]) -> Tensor:
    first = torch.zeros(BATCH, STEPS, dtype=torch.bool)
    for place in places:
        first[place] = True
    return first


def value_of(policy: Policy, obs: Any, first: Tensor) -> Tensor:
    output: PolicyOutput = policy(obs, policy.initial_state(len(first)), first)[0]
    return output.value


def test_policy_generator_may_return_a_policy_of_minestudio() -> None:
    policy = build(PolicyConfig(generator=f"{__name__}:derived"), SCHEMA)
    assert isinstance(policy, Policy)
    obs = {"image": torch.full((1, 3, SIDE, SIDE, 3), 51, dtype=torch.uint8)}
    output, state = policy(obs, policy.initial_state(1), torch.tensor([[False, True, False]]))
    assert state["00"].item() == pytest.approx(0.4)
    torch.testing.assert_close(output.value, policy.value_head(torch.tensor([[[0.2], [0.2], [0.4]]])).squeeze(-1))
    assert policy.action_head.sample(output.params)["buttons"].shape == (1, 3)


@pytest.mark.parametrize("make", [MinePolicy, Gru, Greedy, Without, Whole])
def test_minestudio_adapter_forgets_where_an_episode_begins_within_a_call(make: Any) -> None:
    policy, obs = adapted(make()), images()
    whole = value_of(policy, obs, begins((0, 0), (1, 0), (0, 2), (1, 5)))
    for row, start, end in ((0, 0, 2), (0, 2, 6), (1, 0, 5), (1, 5, 6)):
        alone = {"image": obs["image"][row : row + 1, start:end]}
        torch.testing.assert_close(whole[row, start:end], value_of(policy, alone, begins()[:1, start:end])[0])


@pytest.mark.parametrize("make", [MinePolicy, Gru, Without])
def test_minestudio_adapter_over_many_steps_equals_single_steps_and_the_policys_own_call(make: Any) -> None:
    policy, obs = adapted(make()), images()
    assert policy.takes_chunks
    output, after = policy(obs, policy.initial_state(BATCH), begins((0, 0), (1, 0)))
    own, _ = make().eval()(obs, make().initial_state(BATCH))
    torch.testing.assert_close(output.value, own["vpred"].squeeze(-1))
    torch.testing.assert_close(output.params["buttons"], own["pi_logits"]["buttons"].squeeze(-2))
    state = policy.initial_state(BATCH)
    for step in range(STEPS):
        one, state = policy({"image": obs["image"][:, step : step + 1]}, state, begins()[:, :1])
        torch.testing.assert_close(one.value, output.value[:, step : step + 1])
    assert state.keys() == after.keys()
    for key, leaf in state.items():
        torch.testing.assert_close(leaf, after[key])


def test_minestudio_adapter_finds_out_how_a_policy_uses_its_memory() -> None:
    found = {make: adapted(make()) for make in (MinePolicy, Gru, Greedy, Whole)}
    assert {make.__name__: (one.intercepts_masks, one.takes_chunks) for make, one in found.items()} == {
        "MinePolicy": (True, True),
        "Gru": (False, True),
        "Greedy": (False, True),
        "Whole": (False, False),
    }


@pytest.mark.parametrize(("make", "says"), [(Hoarder, "outside of its state"), (Crowd, "those beside it")])
def test_minestudio_adapter_refuses_a_policy_whose_episodes_leak_into_others(make: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=f"{make.__name__} says something else .*{says}"):
        adapted(make())


def test_a_policy_that_reads_an_undeclared_observation_is_refused_with_those_that_are_declared() -> None:
    with pytest.raises(ConfigError, match=r"Masked fails: KeyError: 'segment' .* has image, .* observation_space"):
        adapted(Masked())


def test_minestudio_adapter_calls_the_policy_once_for_each_text() -> None:
    texts = [["go", "go", "stay", "stay", "stay", "stay"], ["stay"] * STEPS]
    rows = [[list(text.encode().ljust(8, b"\0")) for text in row] for row in texts]
    obs = images() | {"say": torch.tensor(rows, dtype=torch.uint8)}
    schema = Schema(obs={"image": IMAGE, "say": Leaf(kind="text", shape=(8,), dtype="uint8")}, action=ACTION)
    policy = adapted(Guided(), schema)
    output, _ = policy(obs, policy.initial_state(BATCH), begins((0, 3)))
    seen = obs["image"].float().mean((2, 3, 4)) / 255 + torch.tensor([[len(text) for text in row] for row in texts])
    totals = torch.cat([seen[:1, :3].cumsum(1), seen[:1, 3:].cumsum(1)], 1), seen[1:].cumsum(1)
    torch.testing.assert_close(output.value, policy.value_head(torch.cat(totals).unsqueeze(-1)).squeeze(-1))


def test_minestudio_adapter_switches_dropout_off_in_training() -> None:
    policy = adapted(Without())
    policy.train()
    torch.testing.assert_close(value_of(policy, images(), begins()), value_of(policy, images(), begins()))


def test_minestudio_adapter_value_head_can_be_rescaled_whatever_its_kind() -> None:
    for make in (MinePolicy, Without, Squashed):
        policy = adapted(make())
        before = value_of(policy, images(), begins())
        with torch.no_grad():
            policy.value_head.weight.mul_(2)
            policy.value_head.bias.mul_(2).add_(1)
        torch.testing.assert_close(value_of(policy, images(), begins()), 2 * before + 1)


def test_minestudio_adapter_state_dict_names_every_weight_exactly_once() -> None:
    policy = MinePolicyAdapter(Derived(), SCHEMA)
    pointers = [tensor.data_ptr() for tensor in policy.state_dict().values()]
    assert len(set(pointers)) == len(pointers)
    assert sum(parameter.numel() for parameter in policy.parameters() if parameter.requires_grad) == 10 + 2


def test_minestudio_adapter_copy_finds_episode_starts_by_itself() -> None:
    policy = adapted(MinePolicy())
    copied = twin(policy)
    with torch.no_grad():
        policy.value_head.weight.fill_(7)
    first = begins((0, 3))
    expected = value_of(adapted(MinePolicy()), images(), first)
    value_of(policy, images(), begins())
    torch.testing.assert_close(value_of(copied, images(), first), expected)


def test_minestudio_adapter_under_autocast_computes_heads_in_float32() -> None:
    policy = adapted(MinePolicy())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = policy(images(), policy.initial_state(BATCH), begins())
    torch.testing.assert_close(output.value, value_of(policy, images(), begins()))
    assert output.params["buttons"].dtype == torch.float32


def frozen() -> MinePolicy:
    policy = MinePolicy()
    policy.pi_head.requires_grad_(False)
    return policy


@pytest.mark.parametrize("warming_up", [False, True])
def test_minestudio_adapter_keeps_frozen_parameters_frozen(warming_up: bool) -> None:
    policy = build(PolicyConfig(generator=f"{__name__}:frozen"), SCHEMA)
    train_only(policy, heads=False, warming_up=warming_up)
    trained = {key for key, parameter in policy.named_parameters() if parameter.requires_grad}
    assert trained == {"policy.value_head.linear.weight", "policy.value_head.linear.bias"}


@pytest.mark.parametrize("heads", [False, True])
def test_train_only_heads_freezes_the_rest_of_a_minestudio_policy(heads: bool) -> None:
    policy = build(PolicyConfig(generator=f"{__name__}:gru"), SCHEMA)
    train_only(policy, heads=heads, warming_up=False)
    trained = {key.split(".")[1] for key, parameter in policy.named_parameters() if parameter.requires_grad}
    assert trained == ({"pi_head", "value_head"} if heads else {"pi_head", "value_head", "recurrent"})


def gru() -> Gru:
    return Gru()


@pytest.mark.parametrize("seen", [0.0, 0.5])
def test_values_keep_the_units_of_the_normaliser_whether_it_has_seen_something_or_not(seen: float) -> None:
    policy = MinePolicyAdapter(MinePolicy(seen=seen), SCHEMA)
    assert policy.value_norm.denormalize(torch.tensor(1.0)).item() == 2 * 1.0 + 3.0
    assert policy.value_norm.weight.item() == seen


def test_a_policy_for_other_actions_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"chooses among \{'buttons': 6\} .* takes \{'buttons': 5\}"):
        adapted(MinePolicy(6))


@pytest.mark.parametrize(
    ("action", "says"),
    [
        ({"camera": Leaf(kind="box", shape=(2,), dtype="float32")}, "camera: box"),
        (ACTION["buttons"], "an action: discrete"),
    ],
)
def test_a_policy_for_other_kinds_of_actions_is_refused(action: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=f"MinePolicy chooses a category for each named part .* takes {says}"):
        MinePolicyAdapter(MinePolicy(), Schema(obs={"image": IMAGE}, action=action))


def test_a_policy_that_draws_from_less_than_its_distribution_is_refused() -> None:
    policy = MinePolicy()
    setattr(policy.pi_head["buttons"], "nucleus_prob", 0.85)  # noqa: B010  # A module's parts have no type.
    with pytest.raises(ConfigError, match=r"nucleus_prob=0\.85"):
        MinePolicyAdapter(policy, SCHEMA)


@pytest.mark.parametrize(
    ("initial_state", "says"),
    [
        (lambda condition, batch_size: None, "takes more than the number of environments"),
        (lambda batch_size: [torch.zeros(3, batch_size)], "environments first"),
    ],
)
def test_a_state_that_cannot_be_kept_for_each_environment_is_refused(initial_state: Any, says: str) -> None:
    policy = MinePolicy()
    setattr(policy, "initial_state", initial_state)  # noqa: B010  # Likewise.
    with pytest.raises(ConfigError, match=says):
        MinePolicyAdapter(policy, SCHEMA)


def test_a_checkpoint_of_minestudios_trainer_gives_weights_by_strict_names(tmp_path: Path) -> None:
    model, checkpoint = tmp_path / "tiny.model", tmp_path / "model.ckpt"
    model.write_bytes(pickle.dumps(model_file(net_kwargs())))
    code = "import sys, json, torch; sys.path.insert(0, sys.argv[1])\n"
    code += "from minefleet_env.minecraft.minestudio_config_import_stubs import serve; serve()\n"
    code += "from minestudio.models import VPTPolicy\n"
    code += "torch.save(VPTPolicy(json.loads(sys.argv[2]), temperature=2.0).state_dict(), sys.argv[3])"
    clients = str(SCRIPT.parents[1] / "clients")
    command = [minestudio_python(), "-W", "ignore", "-c", code, clients, json.dumps(net_kwargs()), str(checkpoint)]
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
