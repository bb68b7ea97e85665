"""The update: what it trains, what it leaves out, and that it can be taken up again bit for bit."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry
from tests.updates import equal, make_batch, make_updater, weights

from minefleet.config import PolicyConfig, TrainConfig
from minefleet.core.fragment import Fragment
from minefleet.core.schema import Leaf, Schema
from minefleet.policies import Policy, build
from minefleet.runs.checkpoint_files import CheckpointState, read, write
from minefleet_learner.checkpoints.restore import load_snapshot, take_snapshot
from minefleet_learner.data.batch import collate
from minefleet_learner.metrics.prometheus import LearnerMetrics
from minefleet_learner.targets import epoch_preparation, forward_passes
from minefleet_learner.targets.forward_passes import PASS_STEPS, gather
from minefleet_learner.targets.value_and_advantage_estimates import recompute
from minefleet_learner.training.optimizer_state_arrays import digest
from minefleet_learner.training.optimizer_step import NonFiniteError
from minefleet_learner.training.rng_state import restore_rng, rng_arrays, seed_everything
from minefleet_learner.training.schedules import rates
from minefleet_learner.training.updater import Updater

Make = Callable[..., Fragment]
MakePolicy = Callable[..., Policy]
CONFIG = TrainConfig(
    batch_size_per_gpu=2,
    batches_per_iteration=3,
    epochs_per_iteration=2,
    context_length=4,
    weight_decay=0.01,
    entropy_bonus_coef=0.01,
)


@pytest.mark.parametrize(("gru_size", "normalize_obs"), [(0, False), (5, False), (5, True)])
@pytest.mark.parametrize("rho", [0.0, 0.1])
def test_n_updates_equal_k_then_a_checkpoint_then_the_rest_bit_for_bit(
    tmp_path: Path, make_fragment: Make, make_policy: MakePolicy, gru_size: int, normalize_obs: bool, rho: float
) -> None:
    config = replace(CONFIG, kl_divergence_coef_rho=rho, coef_rho_decay=0.9, anneal_lr_linearly=True, vf_warmup=1)
    batches = [make_batch(make_fragment, seed, gru_size) for seed in range(5)]

    def train(updater: Updater, iterations: range) -> None:
        for iteration in iterations:
            updater.update(batches[iteration], rates(config, iteration, iteration / 5))

    straight = make_updater(make_policy(gru_size, normalize_obs=normalize_obs), config)
    seed_everything(1)
    train(straight, range(2))
    state = CheckpointState(run_id="r", iteration=2)
    place = write(tmp_path, take_snapshot(straight, state, "config: {}\n"))
    train(straight, range(2, 5))

    seed_everything(99)
    resumed = make_updater(make_policy(gru_size, seed=7, normalize_obs=normalize_obs), config)
    load_snapshot(resumed, read(place))
    train(resumed, range(2, 5))
    assert equal(weights(straight.policy), weights(resumed.policy))
    expected, got = (take_snapshot(updater, state, "") for updater in (straight, resumed))
    assert set(expected.optimizer) == set(got.optimizer)
    for name, array in expected.optimizer.items():
        assert array.tobytes() == got.optimizer[name].tobytes()
    for name, array in expected.rng.items():
        assert array.tobytes() == got.rng[name].tobytes()


@pytest.mark.parametrize("field", ["reward", "behaviour_logp", "obs"])
def test_a_poisoned_batch_is_left_out_whole_and_training_goes_on(
    make_fragment: Make, make_policy: MakePolicy, field: str
) -> None:
    updater = make_updater(make_policy(), CONFIG)
    batch = make_batch(make_fragment, 0)
    poisoned = batch.seen["vector"] if field == "obs" else getattr(batch, field)
    poisoned[3, 1] = float("nan")
    before = weights(updater.policy)
    report = updater.update(batch, rates(CONFIG, 0, 0.0))
    assert report.skipped_steps == 1
    assert not report.is_trained
    assert equal(weights(updater.policy), before)
    report = updater.update(make_batch(make_fragment, 1), rates(CONFIG, 1, 0.0))
    assert report.skipped_steps == 0
    assert report.is_trained


def test_a_step_whose_gradient_is_not_finite_is_left_out_and_the_others_are_not(
    make_fragment: Make, make_policy: MakePolicy
) -> None:
    config = replace(CONFIG, epochs_per_iteration=1, gae_values="behaviour")
    updater = make_updater(make_policy(), config)
    batch = make_batch(make_fragment, 0)
    batch.seen["vector"][3, 1] = float("nan")
    report = updater.update(batch, rates(config, 0, 0.0))
    assert report.skipped_steps == 1
    assert report.is_trained
    assert all(tensor.isfinite().all() for tensor in updater.policy.state_dict().values())


def test_updater_stops_after_too_many_bad_steps_in_a_row_and_names_the_fragments(
    make_fragment: Make, make_policy: MakePolicy
) -> None:
    config = replace(CONFIG, max_bad_steps=3)
    updater = make_updater(make_policy(), config)
    bad, good = make_batch(make_fragment, 0), make_batch(make_fragment, 1)
    bad.reward[3, 0] = float("inf")
    for batch in (bad, bad, good, bad, bad):
        updater.update(batch, rates(config, 0, 0.0))
    with pytest.raises(NonFiniteError, match="s1/1"):
        updater.update(bad, rates(config, 0, 0.0))


def test_warm_up_trains_only_the_value_head(make_fragment: Make, make_policy: MakePolicy) -> None:
    config = replace(CONFIG, vf_warmup=1, weight_decay=0.5)
    updater = make_updater(make_policy(), config)
    before = weights(updater.policy)
    updater.update(make_batch(make_fragment, 0), rates(config, 0, 0.0))
    changed = {name for name, tensor in updater.policy.state_dict().items() if not torch.equal(tensor, before[name])}
    assert {name.split(".")[0] for name in changed} == {"value_head", "value_norm"}
    updater.update(make_batch(make_fragment, 1), rates(config, 1, 0.0))
    assert not torch.equal(
        updater.policy.state_dict()["action_head.linear.weight"], before["action_head.linear.weight"]
    )


@pytest.mark.parametrize("gru_size", [0, 5])
def test_accumulated_micro_batches_equal_one_large_one(
    make_fragment: Make, make_policy: MakePolicy, gru_size: int
) -> None:
    batch = make_batch(make_fragment, 0, gru_size)
    results = []
    for size, accumulation in ((6, 1), (2, 3), (1, 6)):
        config = TrainConfig(
            batch_size_per_gpu=size,
            batches_per_iteration=6 // size,
            gradient_accumulation=accumulation,
            context_length=16,
            epochs_per_iteration=2,
            inference_batch_size_per_gpu=6,
        )
        policy = make_policy(gru_size)
        report = make_updater(policy, config).update(batch, rates(config, 0, 0.0))
        results.append((weights(policy), report))
    for other, report in results[1:]:
        for name, tensor in results[0][0].items():
            torch.testing.assert_close(other[name], tensor, rtol=0, atol=1e-5)
        for name in ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm"):
            assert getattr(report, name) == pytest.approx(getattr(results[0][1], name), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("recorded", [False, True])
def test_passes_that_stay_in_the_caches_train_like_one_over_the_whole_batch(
    monkeypatch: pytest.MonkeyPatch, make_fragment: Make, make_policy: MakePolicy, recorded: bool
) -> None:
    batch, config = make_batch(make_fragment, 0), replace(CONFIG, batch_size_per_gpu=6, batches_per_iteration=1)
    if recorded:
        config = replace(config, gae_values="behaviour")
    trained, calls_of = [], list[int]()
    for steps in (10**6, 2 * batch.mask.shape[1], 1):
        for module in (forward_passes, epoch_preparation):
            monkeypatch.setattr(module, "PASS_STEPS", steps)
        policy = make_policy()
        calls = list[int]()
        policy.register_forward_hook(lambda _, inputs, __, calls=calls: calls.append(len(inputs[2])))
        seed_everything(0)
        make_updater(policy, config).update(batch, rates(config, 0, 0.0))
        trained.append(weights(policy))
        calls_of.append(len(calls))
    assert calls_of[1] == 3 * calls_of[0]
    steps = int(batch.mask.sum())
    assert calls_of[2] == steps * config.epochs_per_iteration + (0 if recorded else len(batch))
    for other in trained[1:]:
        for name, tensor in trained[0].items():
            torch.testing.assert_close(other[name], tensor, rtol=0, atol=1e-5)


def test_a_policy_with_memory_runs_over_all_rows_that_it_may(make_fragment: Make, make_policy: MakePolicy) -> None:
    batch = make_batch(make_fragment, 0, gru_size=5)
    assert forward_passes.rows_of_a_pass(make_policy(5), batch, 1000) == 1000
    assert forward_passes.rows_of_a_pass(make_policy(), batch, 1000) == PASS_STEPS // batch.mask.shape[1]
    assert forward_passes.rows_of_a_pass(make_policy(), batch, 2) == 2


def test_reference_kl_coefficient_holds_the_policy_back(make_fragment: Make, make_policy: MakePolicy) -> None:
    drift = []
    for rho in (1e-9, 10.0):
        config = replace(CONFIG, kl_divergence_coef_rho=rho, learning_rate=1e-2, entropy_bonus_coef=0.0)
        updater = make_updater(make_policy(), config)
        for seed in range(4):
            torch.manual_seed(seed)
            report = updater.update(make_batch(make_fragment, seed), rates(config, 0, 0.0))
        drift.append(report.reference_kl)
    assert drift[1] < 0.5 * drift[0]


@pytest.mark.parametrize("normalize_obs", [False, True])
def test_first_step_on_the_policys_own_data_has_ratio_one(
    make_fragment: Make, make_policy: MakePolicy, normalize_obs: bool
) -> None:
    policy = make_policy(normalize_obs=normalize_obs)
    batch = make_batch(make_fragment, 0)
    make_updater(policy, CONFIG).update(make_batch(make_fragment, 1), rates(CONFIG, 0, 0.0))
    with torch.no_grad():
        output, _ = policy(gather(batch.seen, batch.position), {}, batch.first)
    batch = replace(batch, behaviour_logp=policy.action_head.logp(output.params, batch.action))
    config = TrainConfig(batch_size_per_gpu=6, epochs_per_iteration=1)
    report = make_updater(policy, config).update(batch, rates(config, 0, 0.0))
    assert report.ratio_max == pytest.approx(1.0, abs=1e-5)
    assert report.approx_kl == pytest.approx(0.0, abs=1e-6)
    assert report.clip_fraction == 0


def test_the_statistics_of_observations_are_those_of_the_steps_of_every_batch_once(
    make_fragment: Make, make_policy: MakePolicy
) -> None:
    policy = make_policy(normalize_obs=True)
    updater = make_updater(policy, CONFIG)
    acted_on = []
    for seed in range(3):
        batch = make_batch(make_fragment, seed)
        acted_on.append(gather(batch.seen, batch.position)["vector"][batch.mask])
        batch.seen["vector"].flatten(0, 1)[~batch.seen_mask.flatten()] = 1e9
        updater.update(batch, rates(CONFIG, seed, 0.0))
    rows = torch.cat(acted_on).double()
    state = policy.state_dict()
    assert state["obs_norm.moments.0.count"] == len(rows) == 3 * (6 + 7 + 8 + 9 + 10 + 11)
    torch.testing.assert_close(state["obs_norm.moments.0.mean"], rows.mean(0))
    torch.testing.assert_close(state["obs_norm.moments.0.variance"], rows.var(0, correction=0))


def test_the_statistics_of_images_are_those_of_the_pixels_of_every_step_once(make_fragment: Make) -> None:
    obs = {"image": Leaf(kind="box", shape=(36, 36, 3), dtype="uint8")}
    action = Leaf(kind="discrete", shape=(), dtype="int64", categories=(4,))
    policy = build(PolicyConfig(hidden_size=8, normalize_pixels=True), Schema(obs=obs, action=action))
    rng = np.random.default_rng(0)
    frames = [rng.integers(50, 200, (length, 36, 36, 3), np.uint8) for length in (6, 8)]
    named = [
        (("s", number), make_fragment(number, len(seen), obs={"image": seen}, cut_obs={"image": seen[:1]}))
        for number, seen in enumerate(frames)
    ]
    make_updater(policy, CONFIG).update(collate(named), rates(CONFIG, 0, 0.0))
    state, pixels = policy.state_dict(), torch.from_numpy(np.concatenate(frames)).view(-1, 3).double() / 255
    assert state["obs_norm.moments.0.count"] == len(pixels)
    torch.testing.assert_close(state["obs_norm.moments.0.mean"], pixels.mean(0), rtol=1e-6, atol=0)
    torch.testing.assert_close(state["obs_norm.moments.0.variance"], pixels.var(0, correction=0), rtol=1e-5, atol=0)


def test_a_batch_that_is_left_out_leaves_the_statistics_of_observations_alone(
    make_fragment: Make, make_policy: MakePolicy
) -> None:
    policy = make_policy(normalize_obs=True)
    batch = make_batch(make_fragment, 0)
    batch.reward[0, 0] = float("nan")
    make_updater(policy, CONFIG).update(batch, rates(CONFIG, 0, 0.0))
    assert policy.state_dict()["obs_norm.moments.0.count"] == 0


def test_rates_of_an_iteration_follow_the_annealing_keys() -> None:
    config = TrainConfig(
        learning_rate=0.1,
        ppo_clip=0.4,
        anneal_lr_linearly=True,
        anneal_clip_linearly=True,
        vf_warmup=2,
        kl_divergence_coef_rho=0.5,
        coef_rho_decay=0.5,
    )
    got = rates(config, 1, 0.25)
    assert (got.learning_rate, got.clip, got.rho) == pytest.approx((0.075, 0.3, 0.25))
    assert got.warming_up
    assert not rates(config, 2, 0.25).warming_up
    constant = replace(config, anneal_lr_linearly=False, anneal_clip_linearly=False)
    assert rates(constant, 0, 1.0).learning_rate == 0.1
    assert rates(constant, 0, 1.0).clip == 0.4


def test_random_generators_are_restored_exactly() -> None:
    seed_everything(5)
    random.gauss(0, 1)
    np.random.randn(3)
    kept = rng_arrays()
    drawn = (random.gauss(0, 1), random.random(), np.random.randn(), np.random.rand(), torch.rand(3).tolist())
    seed_everything(6)
    restore_rng(kept)
    assert drawn == (random.gauss(0, 1), random.random(), np.random.randn(), np.random.rand(), torch.rand(3).tolist())


def test_decoupled_weights_what_moved_before_the_update_and_clips_what_moves_in_it(
    make_fragment: Make, make_policy: MakePolicy
) -> None:
    """The behaviour policy is far off, so that `clip` starts beyond its range and `decoupled` at a ratio of 1."""
    batch = make_batch(make_fragment, 0)
    batch = replace(batch, behaviour_logp=batch.behaviour_logp - 1.0)
    reports = {}
    for off_policy in ("clip", "decoupled", "vtrace"):
        config = replace(
            CONFIG, off_policy=off_policy, batch_size_per_gpu=6, batches_per_iteration=1, epochs_per_iteration=1
        )
        reports[off_policy] = make_updater(make_policy(), config).update(batch, rates(config, 0, 0.0))
    assert reports["clip"].clip_fraction > 0.5
    assert reports["clip"].ratio_max > 2.0
    for off_policy in ("decoupled", "vtrace"):
        assert reports[off_policy].clip_fraction == 0
        assert reports[off_policy].ratio_max == pytest.approx(1.0, abs=1e-5)
        assert reports[off_policy].approx_kl == pytest.approx(reports["clip"].approx_kl, rel=1e-4)
    for report in reports.values():
        assert report.importance_weight_max == pytest.approx(reports["clip"].ratio_max, rel=1e-4)


@pytest.mark.parametrize("off_policy", ["decoupled", "vtrace"])
def test_off_policy_corrections_equal_ppo_where_behaviour_and_proximal_policy_agree(
    make_fragment: Make, make_policy: MakePolicy, off_policy: str
) -> None:
    batch = make_batch(make_fragment, 0)
    batch = replace(batch, behaviour_logp=recompute(make_policy(), batch, CONFIG).logp)
    results = []
    for config in (CONFIG, replace(CONFIG, off_policy=off_policy)):  # type: ignore[arg-type]
        torch.manual_seed(1)
        policy = make_policy()
        torch.manual_seed(1)
        make_updater(policy, config).update(batch, rates(config, 0, 0.0))
        results.append(weights(policy))
    for name, tensor in results[0].items():
        torch.testing.assert_close(results[1][name], tensor, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("off_policy", "key"),
    [("decoupled", "importance_weight_cap"), ("vtrace", "vtrace_rho_bar"), ("vtrace", "vtrace_c_bar")],
)
def test_off_policy_bar_of_importance_weights_changes_the_update(
    make_fragment: Make, make_policy: MakePolicy, off_policy: str, key: str
) -> None:
    batch = make_batch(make_fragment, 0)
    results = []
    for bar in (0.3, 0.3, 3.0):
        config = replace(CONFIG, **{"off_policy": off_policy, key: bar})  # type: ignore[arg-type]
        policy = make_policy()
        torch.manual_seed(1)
        make_updater(policy, config).update(batch, rates(config, 0, 0.0))
        results.append(weights(policy))
    assert equal(results[0], results[1])
    assert not equal(results[0], results[2])


def test_a_step_that_the_proximal_policy_cannot_judge_is_left_out(make_fragment: Make, make_policy: MakePolicy) -> None:
    config = replace(CONFIG, off_policy="decoupled", gae_values="behaviour")
    batch = make_batch(make_fragment, 0)
    batch.seen["vector"][3, 1] = float("nan")
    assert not make_updater(make_policy(), config).update(batch, rates(config, 0, 0.0)).is_trained


def test_the_entropies_of_the_parts_of_an_action_are_reported_and_add_up(make_fragment: Make) -> None:
    leaf = Leaf(kind="discrete", shape=(), dtype="int64", categories=(4,))
    obs = {"vector": Leaf(kind="box", shape=(3,), dtype="float32")}
    policy = build(PolicyConfig(hidden_size=16), Schema(obs=obs, action={"buttons": leaf, "camera": leaf}))
    action = {name: np.zeros(8, np.int64) for name in ("buttons", "camera")}
    batch = collate([((f"s{seed}", 0), make_fragment(seed, action=action)) for seed in range(4)])
    report = make_updater(policy, CONFIG).update(batch, rates(CONFIG, 0, 0.0))
    assert set(report.head_entropy) == {"buttons", "camera"}
    assert sum(report.head_entropy.values()) == pytest.approx(report.entropy)
    assert min(report.head_entropy.values()) > 1.0
    registry = CollectorRegistry()
    LearnerMetrics(registry).observe({"head_entropy": report.head_entropy}, skipped_steps=0)
    shown = registry.get_sample_value("minefleet_learner_head_entropy", {"head": "camera"})
    assert shown == report.head_entropy["camera"]


def test_digest_depends_on_tensors_and_not_on_their_order() -> None:
    tensors = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor(3), "c": torch.tensor([True])}
    known = digest(tensors)
    assert digest(dict(reversed(tensors.items()))) == known
    assert digest(tensors | {"a": torch.tensor([1.0, 2.0000002])}) != known
