"""The whole policy: every schema, memory or none, shared or separate trunks; and that it can learn."""

import pytest
import torch
from torch import Tensor, nn

from minefleet.config import PolicyConfig
from minefleet.core.errors import ConfigError
from minefleet.core.schema import Leaf, Schema, zeros
from minefleet.core.tree import Tree, flatten, tree_map
from minefleet.policies import ActorCritic, Policy, build, zero_value_head
from minefleet.policies.layers.mergeable_moments import moments_of
from minefleet_learner.algorithms.ppo import PPOCoefs, StepTargets, normalize, ppo_loss

VECTOR = Leaf(kind="box", shape=(4,), dtype="float32")
PIXELS = Leaf(kind="box", shape=(64, 64, 3), dtype="uint8")
FLAG = Leaf(kind="discrete", shape=(), dtype="int64", categories=(2,))
BUTTONS = Leaf(kind="multi_discrete", shape=(2,), dtype="int64", categories=(3, 2))
TORQUE = Leaf(kind="box", shape=(3,), dtype="float32", low=-1, high=1)
SCHEMAS = {
    "vector": Schema(obs=VECTOR, action=FLAG),
    "pixels": Schema(obs=PIXELS, action=BUTTONS),
    "category": Schema(obs=FLAG, action=TORQUE),
    "dict": Schema(obs={"image": PIXELS, "body": {"pose": VECTOR, "flag": FLAG}}, action={"a": TORQUE, "b": BUTTONS}),
}
SMALL = {"hidden_size": 16, "conv_channels": [4, 4, 4]}


def inputs(schema: Schema, batch: int, steps: int) -> tuple[Tree, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def draw(zero: Tensor) -> Tensor:
        if zero.is_floating_point():
            return torch.randn(zero.shape, generator=generator)
        return torch.randint(0, 2, zero.shape, generator=generator, dtype=zero.dtype)

    obs = tree_map(draw, tree_map(torch.from_numpy, zeros(schema.obs, batch, steps)))
    return obs, torch.rand(batch, steps, generator=generator) < 0.2


def config(gru_size: int = 0, separate: bool = False) -> PolicyConfig:
    return PolicyConfig(**SMALL, gru_size=gru_size, separate_value_trunk=separate)  # type: ignore[arg-type]


KINDS = {"plain": config(), "gru": config(gru_size=8), "separate": config(separate=True)}


@pytest.mark.parametrize("policy_config", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS.keys())
def test_actor_critic_over_a_sequence_equals_its_steps_one_by_one(schema: Schema, policy_config: PolicyConfig) -> None:
    torch.manual_seed(0)
    policy = build(policy_config, schema)
    obs, first = inputs(schema, 3, 6)
    start = tree_map(torch.randn_like, policy.initial_state(3))
    whole, last = policy(obs, start, first)
    assert whole.value.shape == (3, 6)
    assert whole.value.dtype == torch.float32
    state = start
    for t in range(6):
        step, state = policy(tree_map(lambda leaf, t=t: leaf[:, t : t + 1], obs), state, first[:, t : t + 1])
        torch.testing.assert_close(step.value, whole.value[:, t : t + 1], rtol=1e-4, atol=1e-5)
        for path, leaf in flatten(step.params).items():
            torch.testing.assert_close(leaf, flatten(whole.params)[path][:, t : t + 1], rtol=1e-4, atol=1e-5)
    for path, leaf in flatten(last).items():
        torch.testing.assert_close(leaf, flatten(state)[path], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS.keys())
def test_actor_critic_parameters_all_have_a_gradient(schema: Schema) -> None:
    policy = build(config(gru_size=8), schema)
    obs, first = inputs(schema, 2, 3)
    output, _ = policy(obs, policy.initial_state(2), first)
    logp = policy.action_head.logp(output.params, policy.action_head.sample(output.params))
    (logp.sum() + output.value.sum()).backward()
    assert [name for name, parameter in policy.named_parameters() if parameter.grad is None] == []


def test_actor_critic_without_recurrence_has_an_empty_state() -> None:
    policy = build(config(), SCHEMAS["vector"])
    obs, first = inputs(SCHEMAS["vector"], 2, 3)
    assert policy.initial_state(2) == {}
    assert policy(obs, {}, first)[1] == {}


def test_actor_critic_first_resets_to_the_initial_state() -> None:
    policy = build(config(gru_size=8), SCHEMAS["vector"])
    obs, _ = inputs(SCHEMAS["vector"], 2, 3)
    first = torch.zeros(2, 3, dtype=torch.bool)
    fresh, _ = policy(obs, policy.initial_state(2), first)
    first[:, 0] = True
    reset, _ = policy(obs, {"gru": torch.randn(2, 8)}, first)
    torch.testing.assert_close(reset.value, fresh.value)


def test_a_separate_value_trunk_keeps_value_gradients_out_of_the_policy() -> None:
    policy = build(config(separate=True), SCHEMAS["vector"])
    obs, first = inputs(SCHEMAS["vector"], 2, 3)
    policy(obs, {}, first)[0].value.sum().backward()
    touched = {name.split(".")[0] for name, parameter in policy.named_parameters() if parameter.grad is not None}
    assert touched == {"value_encoder", "value_head"}


def test_a_separate_value_trunk_with_memory_is_refused_by_key() -> None:
    with pytest.raises(ConfigError, match=r"policy\.separate_value_trunk.*policy\.gru_size = 0, got 8"):
        build(config(gru_size=8, separate=True), SCHEMAS["vector"])


def test_actor_critic_with_a_zeroed_value_head_predicts_zero() -> None:
    policy = build(config(), SCHEMAS["vector"])
    zero_value_head(policy)
    obs, first = inputs(SCHEMAS["vector"], 2, 3)
    assert (policy(obs, {}, first)[0].value == 0).all()


class Custom(ActorCritic):
    """The custom policy of the documentation."""

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema, features=8)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh())

    def encode(self, obs: Tree) -> Tensor:
        return torch.as_tensor(self.net(obs))


def test_actor_critic_subclass_needs_only_encode() -> None:
    policy = Custom(SCHEMAS["vector"])
    obs, first = inputs(SCHEMAS["vector"], 2, 3)
    output, _ = policy(obs, policy.initial_state(2), first)
    assert policy.action_head.sample(output.params).shape == (2, 3)


def test_actor_critic_without_an_encoder_takes_the_observation_as_features() -> None:
    policy = ActorCritic(SCHEMAS["vector"], features=4)
    obs, first = inputs(SCHEMAS["vector"], 2, 3)
    torch.testing.assert_close(policy(obs, {}, first)[0].value, policy.value_head(obs).squeeze(-1))


def mean_reward(policy: Policy, obs: Tensor, first: Tensor) -> float:
    """Share of steps in which the action names the largest of four numbers."""
    action = policy.action_head.sample(policy(obs, {}, first)[0].params, deterministic=True)
    return float((action == obs.argmax(-1)).float().mean())


def test_actor_critic_solves_a_contextual_bandit_by_ppo_steps() -> None:
    torch.manual_seed(0)
    schema = Schema(obs=VECTOR, action=Leaf(kind="discrete", shape=(), dtype="int64", categories=(4,)))
    policy = build(PolicyConfig(hidden_size=32, hidden_layers=1), schema)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
    mask, first = torch.ones(64, 4, dtype=torch.bool), torch.ones(64, 4, dtype=torch.bool)
    before = mean_reward(policy, torch.randn(64, 4, 4), first)
    for _ in range(60):
        obs = torch.randn(64, 4, 4)
        with torch.no_grad():
            behaviour, _ = policy(obs, {}, first)
            action = policy.action_head.sample(behaviour.params)
            reward = (action == obs.argmax(-1)).float()
            policy.value_norm.absorb(moments_of(reward.flatten()), policy.value_head)
            behaviour_logp = policy.action_head.logp(behaviour.params, action)
            advantage = normalize(reward - policy.value_norm.denormalize(behaviour.value), mask)
        for _ in range(2):
            output, _ = policy(obs, {}, first)
            loss = ppo_loss(
                logp=policy.action_head.logp(output.params, action),
                value=output.value,
                entropy=policy.action_head.entropy(output.params),
                targets=StepTargets(
                    behaviour_logp=behaviour_logp,
                    proximal_logp=behaviour_logp,
                    advantage=advantage,
                    value_target=policy.value_norm.normalize(reward),
                    anchor_value=output.value,
                ),
                mask=mask,
                coefs=PPOCoefs(clip=0.2),
            )
            optimizer.zero_grad()
            loss.total.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    after = mean_reward(policy, torch.randn(64, 4, 4), first)
    assert before < 0.5
    assert after > 0.85
