"""The update trains VPT as any other policy with memory."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.updates import equal, make_updater, weights

from minefleet.config import TrainConfig
from minefleet.core.fragment import Fragment
from minefleet.core.tree import tree_map
from minefleet.policies.policy import zero_value_head
from minefleet.policies.vpt import PRESETS, VPTPolicy
from minefleet.policies.vpt.architecture import changed
from minefleet.runs.checkpoint_files import CheckpointState, read, write
from minefleet_learner.checkpoints.restore import load_snapshot, take_snapshot
from minefleet_learner.data.batch import Batch, collate
from minefleet_learner.targets.value_and_advantage_estimates import recompute
from minefleet_learner.training.rng_state import seed_everything
from minefleet_learner.training.schedules import rates
from minefleet_learner.training.updater import Updater

TINY = changed(PRESETS["tiny"], {"memory": 5, "image_shape": [16, 16, 3], "blocks": 1})
CONFIG = TrainConfig(
    batch_size_per_gpu=2, batches_per_iteration=2, epochs_per_iteration=2, context_length=4, kl_divergence_coef_rho=0.1
)
STEPS = 9


def policy_of(seed: int = 0) -> VPTPolicy:
    torch.manual_seed(seed)
    return VPTPolicy(TINY).eval()


@torch.no_grad()
def played(policy: VPTPolicy, seed: int) -> Fragment:
    """The policy's actions, a step at a time, with an episode's end in the middle."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.randint(0, 256, (1, STEPS + 1, *TINY.image_shape), dtype=torch.uint8, generator=generator)
    first = torch.zeros(1, STEPS, dtype=torch.bool)
    first[:, 5] = True
    _, start = policy({"image": image[:, :7]}, policy.initial_state(1), torch.zeros(1, 7, dtype=torch.bool))
    state, buttons, camera, logp, value = start, [], [], [], []
    for step in range(STEPS):
        output, state = policy({"image": image[:, step : step + 1]}, state, first[:, step : step + 1])
        action = policy.action_head.sample(output.params, generator=generator)
        buttons.append(int(action["buttons"]))
        camera.append(int(action["camera"]))
        logp.append(float(policy.action_head.logp(output.params, action)))
        value.append(float(policy.value_norm.denormalize(output.value)))
    terminated = np.zeros(STEPS, np.bool_)
    terminated[4] = True
    return Fragment(
        obs={"image": image[0, :STEPS].numpy()},
        action={"buttons": np.array(buttons), "camera": np.array(camera)},
        reward=np.random.default_rng(seed).normal(size=STEPS).astype(np.float32),
        terminated=terminated,
        truncated=np.zeros(STEPS, np.bool_),
        first=first[0].numpy(),
        crash=np.zeros(STEPS, np.bool_),
        behaviour_logp=np.array(logp, np.float32),
        behaviour_value=np.array(value, np.float32),
        next_value=np.zeros(STEPS, np.float32),
        policy_version=np.ones(STEPS, np.uint32),
        cut_index=np.array([STEPS - 1], np.int32),
        cut_obs={"image": image[0, STEPS:].numpy()},
        recurrent_state=tree_map(lambda leaf: leaf[0].numpy(), start),
    )


def batch_of(policy: VPTPolicy, seed: int) -> Batch:
    return collate([((f"s{index}", seed), played(policy, 100 * seed + index)) for index in range(4)])


def updated(updater: Updater, config: TrainConfig, iterations: range) -> None:
    for iteration in iterations:
        updater.update(batch_of(policy_of(), iteration), rates(config, iteration, 0.0))


def test_vpt_logp_recomputed_by_the_learner_equals_the_actors() -> None:
    policy = policy_of()
    batch = batch_of(policy, 3)
    said = recompute(policy, batch, CONFIG)
    torch.testing.assert_close(said.logp[batch.mask], batch.behaviour_logp[batch.mask], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "moving"),
    [
        ({}, {"network", "action_head", "value_head", "value_norm"}),
        ({"fix_decoder": True}, {"action_head", "value_head", "value_norm"}),
        ({"vf_warmup": 1}, {"value_head", "value_norm"}),
    ],
)
def test_vpt_training_changes_the_parameters_that_are_to_be_trained(
    change: dict[str, bool | int], moving: set[str]
) -> None:
    config = replace(CONFIG, **change)  # type: ignore[arg-type]  # The parameters name them.
    updater = make_updater(policy_of(), config)
    before = weights(updater.policy)
    updated(updater, config, range(1))
    after = updater.policy.state_dict()
    assert {name.split(".")[0] for name in after if not torch.equal(after[name], before[name])} == moving


def test_training_goes_on_from_a_checkpoint_bit_for_bit(tmp_path: Path) -> None:
    straight = make_updater(policy_of(), CONFIG)
    seed_everything(1)
    updated(straight, CONFIG, range(1))
    place = write(tmp_path, take_snapshot(straight, CheckpointState(run_id="r", iteration=1), "config: {}\n"))
    updated(straight, CONFIG, range(1, 2))
    resumed = make_updater(policy_of(7), CONFIG)
    load_snapshot(resumed, read(place))
    updated(resumed, CONFIG, range(1, 2))
    assert equal(weights(straight.policy), weights(resumed.policy))


def test_a_zeroed_value_is_zero_in_units_of_the_reward_whatever_was_published() -> None:
    policy = policy_of()
    policy.value_norm.mean.fill_(3.0)
    zero_value_head(policy)
    state, first = policy.initial_state(1), torch.ones(1, 2, dtype=torch.bool)
    image = torch.zeros(1, 2, *TINY.image_shape, dtype=torch.uint8)
    assert not policy.value_norm.denormalize(policy({"image": image}, state, first)[0].value).any()
