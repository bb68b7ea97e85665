"""Single keys of `train_config` change an update, each on a tiny policy."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.updates import equal, make_batch, make_updater, weights

from minefleet.config import TrainConfig
from minefleet.config.load import load
from minefleet.core.errors import ConfigError
from minefleet.core.fragment import Fragment
from minefleet.policies import Policy
from minefleet.runs.checkpoint_files import CheckpointState, read, write
from minefleet_learner.checkpoints.restore import load_snapshot, take_snapshot
from minefleet_learner.data.batch import Batch
from minefleet_learner.data.burn_in_mask import burned_in, burned_steps
from minefleet_learner.data.sequence_windows import cut, windows
from minefleet_learner.targets.forward_passes import evaluate_pieces
from minefleet_learner.targets.sequence_start_states import states_before
from minefleet_learner.targets.value_and_advantage_estimates import recompute
from minefleet_learner.training.rng_state import seed_everything
from minefleet_learner.training.schedules import rates
from minefleet_learner.training.updater import Updater

Make = Callable[..., Fragment]
MakePolicy = Callable[..., Policy]
CONFIG = TrainConfig(
    batch_size_per_gpu=3, batches_per_iteration=2, epochs_per_iteration=2, context_length=4, weight_decay=0.1
)
GRU = 5


def moving(policy: Policy, before: dict[str, torch.Tensor]) -> set[str]:
    """The parts of a policy that have changed."""
    return {name.split(".")[0] for name, tensor in policy.state_dict().items() if not torch.equal(tensor, before[name])}


def on_policy(policy: Policy, batch: Batch, config: TrainConfig = CONFIG) -> Batch:
    """The batch as if the policy had acted."""
    return replace(batch, behaviour_logp=recompute(policy, batch, config).logp)


@pytest.mark.parametrize(("share", "factor"), [(0.0, 0.0), (0.05, 0.5), (0.1, 1.0), (0.55, 0.6), (1.0, 0.2)], ids=str)
def test_schedules_multiply_what_they_are_for_by_the_line_through_their_points(share: float, factor: float) -> None:
    points = [[0.0, 0.0], [0.1, 1.0], [1.0, 0.2]]
    config = TrainConfig(learning_rate=0.01, entropy_bonus_coef=0.5)
    rate = rates(replace(config, learning_rate_schedule=points), 0, share)
    assert (rate.learning_rate, rate.entropy) == pytest.approx((0.01 * factor, 0.5))
    rate = rates(replace(config, entropy_schedule=points, anneal_lr_linearly=True), 0, share)
    assert (rate.learning_rate, rate.entropy) == pytest.approx((0.01 * (1 - share), 0.5 * factor))


def test_a_schedule_is_level_outside_its_points() -> None:
    config = TrainConfig(learning_rate=1.0, learning_rate_schedule=[[0.4, 2.0], [0.6, 3.0]])
    assert [rates(config, 0, share).learning_rate for share in (0.0, 0.5, 1.0)] == pytest.approx([2.0, 2.5, 3.0])


@pytest.mark.parametrize("key", ["learning_rate_schedule", "entropy_schedule"])
@pytest.mark.parametrize("points", ["[[0.5]]", "[[0.5,-1]]", "[[1.5,1]]", "[[0.5,1],[0.5,2]]", "[[0.5,1],[0.2,2]]"])
def test_impossible_points_of_a_schedule_are_rejected_by_key(key: str, points: str) -> None:
    with pytest.raises(ConfigError, match=rf"train_config\.{key} must"):
        load("cartpole", [f"train_config.{key}={points}"])


def test_the_entropy_bonus_is_that_of_its_schedule(make_fragment: Make, make_policy: MakePolicy) -> None:
    entropies = []
    for factor in (0.0, 50.0):
        config = replace(CONFIG, entropy_bonus_coef=0.1, entropy_schedule=[[0.0, factor]], learning_rate=0.02)
        updater = make_updater(make_policy(), config)
        torch.manual_seed(0)
        for seed in range(3):
            report = updater.update(make_batch(make_fragment, seed), rates(config, 0, 0.0))
        entropies.append(report.entropy)
    assert entropies[1] > entropies[0]


@pytest.mark.parametrize("gru_size", [0, GRU])
def test_fix_decoder_trains_the_heads_and_nothing_else(
    make_fragment: Make, make_policy: MakePolicy, gru_size: int
) -> None:
    config = replace(CONFIG, fix_decoder=True)
    updater = make_updater(make_policy(gru_size, normalize_obs=True), config)
    before = weights(updater.policy)
    updater.update(make_batch(make_fragment, 0, gru_size), rates(config, 0, 0.0))
    assert moving(updater.policy, before) == {"action_head", "value_head", "value_norm"}


def test_frozen_parameters_are_in_no_gradient_norm(make_fragment: Make, make_policy: MakePolicy) -> None:
    norms = []
    for fixed in (True, False):
        config = replace(CONFIG, fix_decoder=fixed, epochs_per_iteration=1, batches_per_iteration=1)
        updater = make_updater(make_policy(), config)
        torch.manual_seed(0)
        norms.append(updater.update(make_batch(make_fragment, 0), rates(config, 0, 0.0)).grad_norm)
    assert 0 < norms[0] < norms[1]


def test_warm_up_after_training_leaves_the_policys_outputs_alone_whatever_the_optimizer_remembers(
    make_fragment: Make, make_policy: MakePolicy
) -> None:
    config = replace(CONFIG, vf_warmup=3)
    updater = make_updater(make_policy(normalize_obs=True), config)
    updater.update(make_batch(make_fragment, 0), rates(config, 3, 0.0))  # Moments of every parameter.
    before = weights(updater.policy)
    updater.update(make_batch(make_fragment, 1), rates(config, 0, 0.0))
    assert moving(updater.policy, before) == {"value_head", "value_norm"}


@given(first=st.lists(st.booleans(), min_size=1, max_size=12), steps=st.integers(0, 14))
def test_burn_in_ends_where_an_episode_starts_and_is_counted_alike_by_both_who_count(
    first: list[bool], steps: int
) -> None:
    burned = burned_in(torch.tensor([first]), steps)[0].tolist()
    assert burned == [step < steps and not any(first[: step + 1]) for step in range(len(first))]
    assert sum(burned) == burned_steps(np.array(first), steps)


def test_steps_of_the_burn_in_teach_nothing_but_the_state_passes_through_them(
    make_fragment: Make, make_policy: MakePolicy
) -> None:
    config = replace(CONFIG, burn_in=2, batch_size_per_gpu=6, batches_per_iteration=1, epochs_per_iteration=1)

    def trained(change: Callable[[Batch], object], settings: TrainConfig = config) -> Any:
        batch = make_batch(make_fragment, 0, GRU)
        change(batch)
        policy = make_policy(GRU)
        make_updater(policy, replace(settings, gae_values="behaviour")).update(batch, rates(settings, 0, 0.0))
        return weights(policy)

    def other_actions(batch: Batch) -> None:
        batch.action[:, :2] = (batch.action[:, :2] + 1) % 4
        batch.behaviour_logp[:, :2] -= 1.0

    plain = trained(lambda _: None)
    assert equal(trained(other_actions), plain)
    assert not equal(trained(lambda batch: batch.recurrent_state["gru"].zero_()), plain)
    without = replace(config, burn_in=0)
    assert not equal(trained(other_actions, without), trained(lambda _: None, without))


def test_burn_in_receives_no_gradient_from_the_trained_steps(make_fragment: Make, make_policy: MakePolicy) -> None:
    policy, batch = make_policy(GRU), make_batch(make_fragment, 0, GRU)
    batch.seen["vector"].requires_grad_(True)
    parts = windows(batch.mask.shape[1], 64, 2)
    pieces = cut(batch.mask & ~burned_in(batch.first, 2), parts)
    before = states_before(policy, batch, parts, rows_per_pass=6, dtype=torch.float32, state={})
    start = {"gru": before["gru"][pieces.row, pieces.window]}
    output = evaluate_pieces(policy, batch, pieces.row, pieces.steps, start)
    output.value[pieces.mask].sum().backward()  # type: ignore[no-untyped-call]
    gradient = batch.seen["vector"].grad
    assert gradient is not None
    assert not gradient[:, :2].any()
    assert gradient[:, 2:].any()


def test_burned_in_steps_are_reported_and_a_batch_of_nothing_else_is_not_trained_on(
    make_fragment: Make, make_policy: MakePolicy
) -> None:
    batch = make_batch(make_fragment, 0, GRU)
    few, all_of_them = replace(CONFIG, burn_in=2), replace(CONFIG, burn_in=100)
    assert make_updater(make_policy(GRU), few).update(batch, rates(few, 0, 0.0)).burn_in_steps == 2 * len(batch)
    batch.first.zero_()
    updater = make_updater(make_policy(GRU), all_of_them)
    before = weights(updater.policy)
    report = updater.update(batch, rates(all_of_them, 0, 0.0))
    assert report.burn_in_steps == int(batch.mask.sum())
    assert not report.is_trained
    assert equal(weights(updater.policy), before)
    memoryless = make_updater(make_policy(), few).update(make_batch(make_fragment, 0), rates(few, 0, 0.0))
    assert memoryless.burn_in_steps == 0


def test_epochs_end_before_the_step_whose_kl_exceeds_one_and_a_half_targets(
    make_fragment: Make, make_policy: MakePolicy
) -> None:
    config = replace(
        CONFIG,
        epochs_per_iteration=10,
        learning_rate=0.03,
        ppo_clip=10.0,
        target_kl=0.02,
        batch_size_per_gpu=6,
        batches_per_iteration=1,
    )
    policy = make_policy()
    batch = on_policy(policy, make_batch(make_fragment, 0))
    free = make_updater(copy.deepcopy(policy), replace(config, target_kl=None))
    report = free.update(batch, rates(config, 0, 0.0))
    assert (report.optimizer_steps, report.approx_kl > 0.03) == (10, True)
    report = make_updater(policy, config).update(batch, rates(config, 0, 0.0))
    assert 0 < report.optimizer_steps < 10
    assert report.approx_kl <= 0.03


def test_target_kl_does_not_end_the_warm_up(make_fragment: Make, make_policy: MakePolicy) -> None:
    config = replace(CONFIG, target_kl=1e-9, vf_warmup=1)
    batch = make_batch(make_fragment, 0)
    assert make_updater(make_policy(), config).update(batch, rates(config, 0, 0.0)).optimizer_steps == 4
    assert make_updater(make_policy(), config).update(batch, rates(config, 1, 0.0)).optimizer_steps == 0


def test_the_learning_rate_after_resume_is_the_configurations_and_not_the_optimizers(
    make_fragment: Make, make_policy: MakePolicy
) -> None:
    old = make_updater(make_policy(), replace(CONFIG, learning_rate=0.1))
    old.update(make_batch(make_fragment, 0), rates(replace(CONFIG, learning_rate=0.1), 0, 0.0))
    resumed = make_updater(make_policy(), replace(CONFIG, learning_rate=1e-5))
    load_snapshot(resumed, take_snapshot(old, CheckpointState(run_id="r"), ""))
    before = weights(resumed.policy)
    config = replace(CONFIG, learning_rate=1e-5, weight_decay=0.0)
    resumed.update(make_batch(make_fragment, 1), rates(config, 1, 0.5))
    assert [group["lr"] for group in resumed.optimizer.param_groups] == [1e-5]
    moved = max(
        float((resumed.policy.state_dict()[name] - tensor).abs().max())
        for name, tensor in before.items()
        if name.startswith("encoder")
    )
    assert 0 < moved < 1e-3


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("gru_size", [0, GRU])
def test_mixed_precision_trains_with_a_ratio_of_one_at_first_and_float32_outputs(
    make_fragment: Make, make_policy: MakePolicy, dtype: Any, gru_size: int
) -> None:
    config = replace(
        CONFIG, use_amp=True, amp_dtype=dtype, epochs_per_iteration=1, batch_size_per_gpu=6, batches_per_iteration=1
    )
    policy = make_policy(gru_size)
    exact, batch = on_policy(policy, make_batch(make_fragment, 0, gru_size)), make_batch(make_fragment, 0, gru_size)
    batch = on_policy(policy, batch, config)
    assert not torch.equal(batch.behaviour_logp, exact.behaviour_logp)  # It does compute otherwise.
    assert batch.behaviour_logp.dtype == torch.float32
    updater = make_updater(policy, config)
    report = updater.update(batch, rates(config, 0, 0.0))
    assert report.ratio_max == pytest.approx(1.0, abs=1e-6)
    assert report.is_trained
    assert {tensor.dtype for tensor in policy.parameters()} == {torch.float32}
    assert updater.scaler.is_enabled() == (dtype == "float16")


def test_a_gradient_beyond_float16_is_left_out_and_halves_the_scale_which_checkpoints_keep(
    tmp_path: Path, make_fragment: Make, make_policy: MakePolicy
) -> None:
    config = replace(CONFIG, use_amp=True, amp_dtype="float16", ppo_vf_coef=1e4, epochs_per_iteration=1)
    updater = make_updater(make_policy(), config)
    report = updater.update(make_batch(make_fragment, 0), rates(config, 0, 0.0))
    assert report.skipped_steps > 0
    assert updater.scaler.get_scale() == 2.0 ** (16 - report.skipped_steps)
    place = write(tmp_path, take_snapshot(updater, CheckpointState(run_id="r"), ""))
    resumed = make_updater(make_policy(), config)
    load_snapshot(resumed, read(place))
    assert resumed.scaler.state_dict() == updater.scaler.state_dict()


def test_n_updates_equal_k_then_a_checkpoint_then_the_rest_with_all_keys_at_once(
    tmp_path: Path, make_fragment: Make, make_policy: MakePolicy
) -> None:
    config = replace(
        CONFIG,
        use_amp=True,
        amp_dtype="float16",
        kl_divergence_coef_rho=0.1,
        enable_ref_update=True,
        ref_update_interval=4,
        burn_in=1,
        target_kl=10.0,
        learning_rate_schedule=[[0.0, 0.1], [0.5, 1.0]],
        entropy_bonus_coef=0.1,
        entropy_schedule=[[0.0, 1.0], [1.0, 0.0]],
    )
    batches = [make_batch(make_fragment, seed, GRU) for seed in range(6)]
    for number, batch in enumerate(batches):  # Of streams that go on from batch to batch.
        batch.names[:] = [(stream, 2 * number + sequence) for stream, sequence in batch.names]

    def train(updater: Updater, iterations: range) -> None:
        for iteration in iterations:
            updater.update(batches[iteration], rates(config, iteration, iteration / 6))

    straight = make_updater(make_policy(GRU), config)
    seed_everything(1)
    train(straight, range(3))
    place = write(tmp_path, take_snapshot(straight, CheckpointState(run_id="r", iteration=3), ""))
    train(straight, range(3, 6))
    resumed = make_updater(make_policy(GRU, seed=7), config)
    load_snapshot(resumed, read(place))
    train(resumed, range(3, 6))
    one, other = (take_snapshot(updater, CheckpointState(run_id="r"), "") for updater in (straight, resumed))
    for arrays, others in ((getattr(one, name), getattr(other, name)) for name in one_by_one()):
        assert {name: array.tobytes() for name, array in arrays.items()} == {
            name: array.tobytes() for name, array in others.items()
        }
        assert arrays


def one_by_one() -> list[str]:
    return ["policy", "optimizer", "scaler", "reference", "carried", "rng"]
