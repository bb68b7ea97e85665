"""The outputs of a frozen encoder are stored in the place of pictures, and stand for them exactly."""

import copy
from typing import Any

import pytest
import torch
from tests.minefleet.policies.minestudio.test_adapter import Gru, Guided, MinePolicy, adapted
from torch import Tensor, nn

from minefleet.config import PolicyConfig
from minefleet.core.errors import ConfigError
from minefleet.core.schema import Leaf, Schema
from minefleet.core.tree import Tree, flatten, tree_map
from minefleet.policies import ActorCritic, Policy, build, stored_encoder_outputs
from minefleet.policies.layers.encoders import ENCODE_CHUNK_STEPS
from minefleet.policies.stored_encoder_outputs import KEY
from minefleet_learner.training.compiled_policy import compiled_policy

SIDE, WIDTH = 4, 3
ACTION = {"buttons": Leaf(kind="discrete", shape=(), dtype="int64", categories=(5,))}
IMAGE = Leaf(kind="box", shape=(SIDE, SIDE, 3), dtype="uint8", low=0, high=255)
MASK = Leaf(kind="box", shape=(SIDE, SIDE), dtype="uint8", low=0, high=1)
NUMBER = Leaf(kind="box", shape=(2,), dtype="float32", low=-1, high=1)
TEXT = Leaf(kind="text", shape=(4,), dtype="uint8")
SCHEMA = Schema(obs={"image": IMAGE, "mask": MASK, "number": NUMBER}, action=ACTION)


class Views(nn.Module):
    """A frozen network, called with two pictures; of its two outputs the first is not read."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(2, 2)
        self.vit = Vit().requires_grad_(False)
        self.number = nn.Linear(2 * WIDTH + 2, 8)

    def forward(self, obs: Tree) -> Tensor:
        seen = obs["image"].flatten(1).float() / 255
        masked = seen * obs["mask"].flatten(1).repeat_interleave(3, 1)
        views = [self.vit(self.before(pictures))[1] for pictures in (seen, masked)]
        features: Tensor = self.number(torch.cat([*views, obs["number"]], -1)).tanh()
        return features + self.more(obs)

    def before(self, pictures: Tensor) -> Tensor:
        return pictures

    def more(self, obs: Tree) -> Tensor | float:
        del obs
        return 0.0


class Vit(nn.Module):
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(SIDE * SIDE * 3, WIDTH)

    def forward(self, pictures: Tensor) -> Any:
        type(self).calls += 1
        made = self.layer(pictures)
        return [made.exp().unsqueeze(-1), made]


class Behind(Views):
    """Has a trained layer before the frozen ones."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(SIDE * SIDE * 3, SIDE * SIDE * 3)

    def before(self, pictures: Tensor) -> Tensor:
        out: Tensor = self.stem(pictures)
        return out


class Reader(Views):
    """Reads the mean of the picture elsewhere, by a layer that begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(1, 8)
        nn.init.zeros_(self.stem.weight)
        nn.init.zeros_(self.stem.bias)

    def more(self, obs: Tree) -> Tensor:
        out: Tensor = self.stem(obs["image"].flatten(1).float().mean(1, keepdim=True) / 255)
        return out


class Greedy(Reader):
    """Reads the mask elsewhere, too."""

    def more(self, obs: Tree) -> Tensor:
        out: Tensor = super().more(obs) + obs["mask"].flatten(1).float().mean(1, keepdim=True)
        return out


class Counts(nn.Module):
    """Its frozen part says how many steps there are."""

    def __init__(self) -> None:
        super().__init__()
        self.vit = Count()

    def forward(self, obs: Tree) -> Tensor:
        count, seen = self.vit(obs["image"])
        out: Tensor = seen.flatten(1)[:, :8].float() / count
        return out


class Count(nn.Module):
    def forward(self, pictures: Tensor) -> Any:
        return len(pictures), pictures


class Sums(Counts):
    """Its frozen part sums up over all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.vit = Sum()


class Sum(Count):
    def forward(self, pictures: Tensor) -> Any:
        return torch.ones(len(pictures), 1), pictures.sum(0, keepdim=True)


def made(encoder: nn.Module | None = None, *, gru_size: int = 0) -> ActorCritic:
    torch.manual_seed(0)
    return ActorCritic(SCHEMA, encoder or Views(), features=8, gru_size=gru_size)


def frozen(policy: Policy, name: str = "encoder.vit", schema: Schema = SCHEMA) -> Policy:
    stored_encoder_outputs.freeze(policy, getattr(policy, "policy", policy), name, schema)
    return policy


def observed(batch: int, steps: int, schema: Schema = SCHEMA) -> Tree:
    torch.manual_seed(1)
    return tree_map(
        lambda leaf: (torch.rand(batch, steps, *leaf.shape) * (leaf.high + 1)).to(getattr(torch, leaf.dtype)),
        schema.obs,
    )


def said(policy: Policy, obs: Tree, first: Tensor | None = None) -> Any:
    leaf = next(iter(flatten(obs).values()))
    first = torch.zeros(leaf.shape[:2], dtype=torch.bool) if first is None else first
    with torch.no_grad():
        return policy(obs, policy.initial_state(len(leaf)), first)


def assert_alike(one: Any, other: Any) -> None:
    for mine, theirs in zip(everything(one), everything(other), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


def everything(outcome: Any) -> list[Tensor]:
    output, state = outcome
    return [output.value, *flatten(output.params).values(), *flatten(state).values()]


def stored(policy: Policy, obs: Tree, first: Tensor | None = None) -> Tree:
    """As actors store it: step by step."""
    assert policy.frozen_encoder is not None
    steps = next(iter(flatten(obs).values())).shape[1]
    parts = [said(policy, tree_map(lambda leaf, at=at: leaf[:, at : at + 1], obs))[0] for at in range(steps)]
    encoded = tree_map(lambda *leaves: torch.cat(leaves, 1), *(part.encoded for part in parts))
    return policy.frozen_encoder.stored(obs, encoded)


@pytest.mark.parametrize("gru_size", [0, 4], ids=["without memory", "with memory"])
@pytest.mark.parametrize("batch", [2, ENCODE_CHUNK_STEPS + 1])
def test_policy_on_stored_outputs_equals_the_one_on_pictures_without_its_encoder(gru_size: int, batch: int) -> None:
    policy, obs = frozen(made(gru_size=gru_size)), observed(batch, 4)
    kept = stored(policy, obs)
    before = Vit.calls
    outcome = said(policy, kept)
    assert Vit.calls == before
    assert_alike(outcome, said(made(gru_size=gru_size), obs))
    assert outcome[0].encoded == {}


def test_neither_pictures_nor_unread_outputs_are_stored_and_numbers_are() -> None:
    policy = frozen(made())
    assert policy.frozen_encoder is not None
    schema = policy.frozen_encoder.schema(SCHEMA)
    features = Leaf(kind="box", shape=(WIDTH,), dtype="float32")
    assert schema.obs == {"number": NUMBER, KEY: {"01": features, "03": features}}
    assert schema.action == ACTION
    kept = flatten(stored(policy, observed(2, 3)))
    assert {path: leaf.shape[2:] for path, leaf in kept.items()} == {
        path: leaf.shape for path, leaf in flatten(schema.obs).items()
    }


def test_frozen_encoder_outputs_give_the_gradients_of_a_pass_over_pictures() -> None:
    policy, plain, obs = frozen(made()), made(), observed(2, 4)
    for module, seen in ((policy, stored(policy, obs)), (plain, obs)):
        output, _ = module(seen, {}, torch.zeros(2, 4, dtype=torch.bool))
        (output.value.sum() + output.params["buttons"].square().sum()).backward()
    for one, other in zip(policy.parameters(), plain.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None and other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad)


def test_copy_of_a_policy_has_its_own_frozen_encoder() -> None:
    policy, obs = frozen(made()), observed(2, 4)
    twin = copy.deepcopy(policy)
    kept, outcome = stored(policy, obs), said(policy, obs)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
    assert_alike(said(twin, kept), outcome)
    assert_alike(said(twin, obs), outcome)
    assert twin.frozen_encoder is not policy.frozen_encoder


def test_a_picture_that_is_read_elsewhere_is_stored_also_where_its_weights_begin_at_zero() -> None:
    policy = frozen(made(Reader()))
    assert policy.frozen_encoder is not None
    assert set(policy.frozen_encoder.blank) == {"mask"}


@pytest.mark.parametrize(
    ("encoder", "name", "why"),
    [
        (Views(), "vit", "no such part; it has encoder, action_head, value_head, value_norm"),
        (Views(), "encoder", r"it is trained \(stem.weight and 3 more"),
        (Views(), "", "no such part"),
        (Behind(), "encoder.vit", "the output of parts that are trained"),
        (Greedy(), "encoder.vit", "reads every picture elsewhere"),
        (Views(), "value_norm", "does not call it"),
        (Counts(), "encoder.vit", "it returns a int, which is no tensor"),
        (Sums(), "encoder.vit", r"of 3 steps of 2 environments it returns \[1, 4, 4, 3\]"),
    ],
)
def test_frozen_encoder_that_cannot_stand_for_pictures_is_refused(encoder: nn.Module, name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as error:
        frozen(made(encoder), name)
    assert f"policy.{KEY}={name}:" in str(error.value)


class OfNumbers(nn.Module):
    """A frozen layer that reads numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.vit = nn.Linear(2, WIDTH).requires_grad_(False)
        self.dense = nn.Linear(WIDTH, 8)

    def forward(self, obs: Tree) -> Tensor:
        out: Tensor = self.dense(self.vit(obs["number"]))
        return out


def test_frozen_encoder_is_refused_where_what_it_reads_is_normalised() -> None:
    def normalized(encoder: nn.Module) -> ActorCritic:
        return ActorCritic(SCHEMA, encoder, features=8, normalize_obs=True)

    kept = frozen(normalized(Views()))
    assert kept.obs_norm is not None and not kept.obs_norm.moments[0].get_buffer("mean").any()
    with pytest.raises(ConfigError, match="what it reads is normalised, by statistics that change"):
        frozen(normalized(OfNumbers()))


class Seeing(MinePolicy):
    """A policy of MineStudio's kind, whose encoder is called with all steps of a call."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(SIDE * SIDE * 3, 1).requires_grad_(False)

    def seen(self, obs: Any) -> Tensor:
        images: Tensor = obs["image"]
        return self.backbone(images.flatten(2).flatten(0, 1).float() / 255).reshape(*images.shape[:2], 1)  # type: ignore[no-any-return]


class SeeingGru(Seeing, Gru):
    """Is called up to each begin of an episode."""


class SeeingGuided(Guided, Seeing):
    """Is called for each text."""

    def seen(self, obs: Any) -> Tensor:
        says = torch.tensor([[len(step) for step in row] for row in obs["say"]])
        return Seeing.seen(self, obs) + says.unsqueeze(-1)


class Swapped(Seeing):
    """Lines up its steps in an order of its own."""

    def seen(self, obs: Any) -> Tensor:
        return super().seen({"image": obs["image"].transpose(0, 1)}).transpose(0, 1)


IMAGES = Schema(obs={"image": IMAGE}, action=ACTION)
TEXTS = Schema(obs={"image": IMAGE, "say": TEXT}, action=ACTION)


@pytest.mark.parametrize("cls", [Seeing, SeeingGru])
def test_a_policy_of_minestudio_says_the_same_also_where_episodes_begin(cls: type[MinePolicy]) -> None:
    policy, obs = frozen(adapted(cls(), IMAGES), "backbone", IMAGES), observed(2, 6, IMAGES)
    first = torch.zeros(2, 6, dtype=torch.bool)
    first[0, 2] = first[1, 4] = True
    kept = stored(policy, obs)
    assert list(kept) == [KEY]
    assert_alike(said(policy, kept, first), said(adapted(cls(), IMAGES), obs, first))


def test_frozen_encoder_outputs_stay_with_their_row_where_texts_split_a_call() -> None:
    policy, obs = frozen(adapted(SeeingGuided(), TEXTS), "backbone", TEXTS), observed(3, 4, IMAGES)
    obs["say"] = torch.zeros(3, 4, 4, dtype=torch.uint8)
    obs["say"][1, :, :2] = obs["say"][:, 3, :3] = ord("a")
    assert_alike(said(policy, stored(policy, obs)), said(adapted(SeeingGuided(), TEXTS), obs))


def test_frozen_encoder_whose_outputs_change_the_order_of_steps_is_refused() -> None:
    with pytest.raises(ConfigError, match="with its outputs of single steps"):
        frozen(adapted(Swapped(), IMAGES), "backbone", IMAGES)


def generator(schema: Schema) -> ActorCritic:
    return ActorCritic(schema, Views(), features=8)


def test_frozen_encoder_key_switches_stored_outputs_on() -> None:
    reference = f"{__file__}:generator"
    assert build(PolicyConfig(generator=reference), SCHEMA).frozen_encoder is None
    assert build(PolicyConfig(generator=reference, frozen_encoder="encoder.vit"), SCHEMA).frozen_encoder is not None
    with pytest.raises(ConfigError, match=r"policy\.frozen_encoder is a part of a generator's policy"):
        PolicyConfig(frozen_encoder="encoder.vit")


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
def test_compiled_policy_takes_and_returns_frozen_encoder_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Vit, "forward", lambda self, pictures: [self.layer(pictures)] * 2)
    policy, obs = frozen(made(gru_size=4)), observed(3, 4)
    assert policy.frozen_encoder is not None
    kept = stored(policy, obs)
    compiled = compiled_policy(policy, policy.frozen_encoder.schema(SCHEMA), torch.float32)
    assert compiled is not policy
    assert_alike(said(compiled, kept), said(policy, kept))
    outcome = said(compiled, obs)
    assert_alike(outcome, said(policy, obs))
    assert_alike_trees(outcome[0].encoded, said(policy, obs)[0].encoded)


def assert_alike_trees(one: Tree, other: Tree) -> None:
    assert set(flatten(one)) == set(flatten(other)) != set()
    tree_map(lambda mine, theirs: torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5), one, other)
