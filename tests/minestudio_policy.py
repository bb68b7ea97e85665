"""Compares a policy of MineStudio with ours; a test runs this file in an interpreter that has MineStudio."""

import importlib
from typing import Any

import numpy as np
import torch
from tests.mine_models import OBSERVED, policy_generator
from tests.updates import equal, make_updater, weights

from minefleet.config import TrainConfig
from minefleet.core.fragment import Fragment
from minefleet.core.schema import Leaf, Schema
from minefleet.core.tree import tree_map
from minefleet.policies.minestudio.adapter import MinePolicyAdapter
from minefleet.policies.minestudio.reset_probe import probe
from minefleet.policies.random_observation import random_observation
from minefleet_env.minecraft import minestudio_config_import_stubs
from minefleet_learner.data.batch import collate
from minefleet_learner.training.schedules import rates

SIDE, STEPS, BATCH = 32, 12, 2
SCHEMA = Schema(
    obs={"image": Leaf(kind="box", shape=(SIDE, SIDE, 3), dtype="uint8", low=0, high=255)},
    action={
        "buttons": Leaf(kind="discrete", shape=(), dtype="int64", categories=(8641,)),
        "camera": Leaf(kind="discrete", shape=(), dtype="int64", categories=(121,)),
    },
)
TINY = {
    "attention_heads": 2,
    "attention_mask_style": "clipped_causal",
    "attention_memory_size": 16,
    "hidsize": 32,
    "img_shape": [SIDE, SIDE, 3],
    "impala_chans": [4, 8, 8],
    "impala_kwargs": {"post_pool_groups": 1},
    "impala_width": 1,
    "init_norm_kwargs": {"batch_norm": False, "group_norm_groups": 1},
    "n_recurrence_layers": 2,
    "recurrence_is_residual": True,
    "recurrence_type": "transformer",
    "timesteps": 8,
    "use_pointwise_layer": True,
}


def mine() -> Any:
    torch.manual_seed(0)
    policy = importlib.import_module("minestudio.models").VPTPolicy(TINY, temperature=2.0)
    with torch.no_grad():
        for part in policy.pi_head.values():
            part.linear_layer.weight.mul_(30)
    return policy


def images(steps: int) -> Any:
    pixels = np.random.default_rng(1).integers(0, 256, (BATCH, steps, SIDE, SIDE, 3), np.uint8)
    return {"image": torch.as_tensor(pixels)}


def says_what_minestudio_says() -> None:
    policy = mine()
    obs, state = images(STEPS), [leaf.clone() for leaf in policy.initial_state(BATCH)]
    with torch.no_grad():
        theirs, after = policy(obs, state)
        ours = MinePolicyAdapter(policy, SCHEMA)
        output, state_after = ours(obs, ours.initial_state(BATCH), torch.zeros(BATCH, STEPS, dtype=torch.bool))
    for key, leaf in output.params.items():
        torch.testing.assert_close(leaf, theirs["pi_logits"][key].squeeze(-2), rtol=0, atol=1e-6)
    torch.testing.assert_close(output.value, theirs["vpred"].squeeze(-1), rtol=0, atol=1e-6)
    for one, other in zip(state_after.values(), after, strict=True):
        assert torch.equal(one, other)
    action = policy.pi_head.sample(theirs["pi_logits"])
    plain = tree_map(lambda leaf: leaf.squeeze(-1), action)
    head, logits = ours.action_head, theirs["pi_logits"]
    torch.testing.assert_close(head.logp(output.params, plain), policy.pi_head.logprob(action, logits))
    torch.testing.assert_close(head.entropy(output.params), policy.pi_head.entropy(logits))


def forgets_in_the_middle_of_a_chunk() -> None:
    ours = MinePolicyAdapter(mine(), SCHEMA)
    obs, first = images(STEPS), torch.zeros(BATCH, STEPS, dtype=torch.bool)
    first[0, 5] = True
    rest = {"image": obs["image"][:, 5:]}
    with torch.no_grad():
        whole, _ = ours(obs, ours.initial_state(BATCH), first)
        remembering, _ = ours(obs, ours.initial_state(BATCH), torch.zeros_like(first))
        fresh, _ = ours(rest, ours.initial_state(BATCH), torch.zeros_like(first[:, 5:]))
    torch.testing.assert_close(whole.value[0, 5:], fresh.value[0], rtol=0, atol=1e-5)
    assert (whole.value[0, 5:] - remembering.value[0, 5:]).abs().max() > 1e-3
    torch.testing.assert_close(whole.value[1], remembering.value[1])


def every_model_says_what_it_says_itself_and_forgets_where_it_should() -> None:
    for name, leaves in OBSERVED.items():
        policy = policy_generator(name).eval()
        schema = Schema(obs=leaves, action=SCHEMA.action)
        obs, first = random_observation(schema, torch.Generator().manual_seed(1)), torch.zeros(2, 3, dtype=torch.bool)
        with torch.no_grad():
            theirs, after = policy(obs, policy.initial_state(BATCH))
            ours = MinePolicyAdapter(policy, schema)
            probe(ours, schema)
            assert ours.intercepts_masks and ours.takes_chunks, name
            output, state_after = ours(obs, ours.initial_state(BATCH), first)
            first[0, 1] = True
            whole, _ = ours(obs, ours.initial_state(BATCH), first)
            rest = tree_map(lambda leaf: leaf[:, 1:], obs)
            fresh, _ = ours(rest, ours.initial_state(BATCH), torch.zeros(2, 2, dtype=torch.bool))
        for key, leaf in output.params.items():
            torch.testing.assert_close(leaf, theirs["pi_logits"][key].squeeze(-2), rtol=0, atol=1e-5)
            torch.testing.assert_close(whole.params[key][0, 1:], fresh.params[key][0], rtol=0, atol=1e-5)
            assert (whole.params[key][0, 1:] - output.params[key][0, 1:]).abs().max() > 1e-4, name
        torch.testing.assert_close(output.value, theirs["vpred"].squeeze(-1), rtol=0, atol=1e-5)
        torch.testing.assert_close(whole.value[0, 1:], fresh.value[0], rtol=0, atol=1e-5)
        for one, other in zip(state_after.values(), after, strict=True):
            torch.testing.assert_close(one, other)


def starts_from_a_state_that_nobody_else_has() -> None:
    ours = MinePolicyAdapter(mine(), SCHEMA)
    ours.initial_state(BATCH)["01"].fill_(1)
    assert not ours.initial_state(BATCH)["01"].any()


def denormalises_as_minestudio_does() -> None:
    policy = mine()
    policy.train()
    policy.value_head.normalize(torch.randn(64, 4, 1) * 3 + 5)
    value = torch.randn(2, 3, 1)
    theirs = policy.value_head.denormalize(value)
    ours = MinePolicyAdapter(policy, SCHEMA).value_norm.denormalize(value)
    torch.testing.assert_close(ours.float(), theirs)


def trains_from_what_it_did_itself() -> None:
    policy = MinePolicyAdapter(mine(), SCHEMA)
    config = TrainConfig(context_length=4, kl_divergence_coef_rho=0.2)
    updater, before = make_updater(policy, config), weights(policy)
    report = updater.update(collate([(("s", 0), acted(policy))]), rates(config, 0, 0))
    assert abs(report.ratio_max - 1) < 1e-4, report.ratio_max
    assert report.optimizer_steps > 0
    assert not equal(before, weights(policy))


def acted(policy: MinePolicyAdapter) -> Fragment:
    """The policy's actions in one environment, in two episodes."""
    first = np.zeros(STEPS, np.bool_)
    first[[0, 5]] = True
    obs = tree_map(lambda leaf: leaf[:1], images(STEPS + 1))
    state = policy.initial_state(1)
    with torch.no_grad():
        output, _ = policy(tree_map(lambda leaf: leaf[:, :-1], obs), state, torch.as_tensor(first[None]))
        action = policy.action_head.sample(output.params)
        logp = policy.action_head.logp(output.params, action)
    none = np.zeros(STEPS, np.bool_)
    return Fragment(
        obs=tree_map(lambda leaf: leaf[0, :-1].numpy(), obs),
        action=tree_map(lambda leaf: leaf[0].numpy(), action),
        reward=np.arange(STEPS, dtype=np.float32),
        terminated=np.append(first[1:], False),
        truncated=none,
        first=first,
        crash=none,
        behaviour_logp=logp[0].numpy(),
        behaviour_value=output.value[0].numpy(),
        next_value=np.zeros(STEPS, np.float32),
        policy_version=np.ones(STEPS, np.uint32),
        cut_index=np.array([STEPS - 1], np.int32),
        cut_obs=tree_map(lambda leaf: leaf[0, -1:].numpy(), obs),
        recurrent_state=tree_map(lambda leaf: leaf[0].numpy(), state),
    )


if __name__ == "__main__":
    minestudio_config_import_stubs.serve()
    says_what_minestudio_says()
    forgets_in_the_middle_of_a_chunk()
    every_model_says_what_it_says_itself_and_forgets_where_it_should()
    starts_from_a_state_that_nobody_else_has()
    denormalises_as_minestudio_does()
    trains_from_what_it_did_itself()
