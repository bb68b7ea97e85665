"""Faults of another trainer's learner, each with the test of ours that would notice it."""

import ast
import math
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minefleet_learner.algorithms.ppo import normalize

ROOT = Path(__file__).parents[2]
LEARNER, ACTOR, REPLAY = "tests/minefleet_learner", "tests/minefleet_actor", "tests/minefleet_replay"
FAULTS = {
    "the state that bootstraps a fragment is another fragment's": [
        f"{LEARNER}/data/test_batch.py::test_recomputed_values_equal_evaluation_step_by_step"
    ],
    "stale chunks behind a fresh one are handed out": [
        f"{REPLAY}/engine/test_lease.py::test_lease_leaves_out_chunks_that_would_be_too_stale_when_used",
        f"{REPLAY}/engine/test_lease.py::test_a_chunk_is_as_stale_as_its_oldest_step",
    ],
    "the clip is anchored to a policy that did not act": [
        f"{LEARNER}/training/test_updater.py::test_first_step_on_the_policys_own_data_has_ratio_one"
    ],
    "the iteration is inferred from the optimizer's learning rate": [
        f"{LEARNER}/test_loop.py::test_a_crashed_learner_abandons_a_lineage_and_no_counter_goes_back",
        f"{LEARNER}/test_keys.py::test_the_learning_rate_after_resume_is_the_configurations_and_not_the_optimizers",
    ],
    "first is ignored": [
        "tests/minefleet/policies/layers/test_gru.py::test_gru_after_a_first_equals_a_run_from_a_fresh_state"
    ],
    "truncation is termination": [
        f"{LEARNER}/algorithms/test_gae.py::test_gae_bootstraps_a_truncated_step_and_not_a_terminated_one",
        f"{ACTOR}/rollout/test_fragment_recorder.py::test_a_truncated_step_bootstraps_from_the_observation_before_the_reset",
    ],
    "a crash of the simulator is a terminal step": [
        f"{ACTOR}/rollout/test_fragment_recorder.py::test_a_failed_step_is_never_stored_and_the_last_good_one_is_cut",
        f"{ACTOR}/test_loop.py::test_episode_records_tell_failures_from_endings_and_lose_no_reward",
    ],
    "a step that is not finite is taken in part": [
        f"{LEARNER}/training/test_updater.py::test_a_step_whose_gradient_is_not_finite_is_left_out_and_the_others_are_not"
    ],
    "the debugger stops a run that nobody watches": [
        f"{LEARNER}/test_faults_elsewhere.py::test_product_code_starts_no_debugger"
    ],
    "no multiple of keep_interval survives": [
        "tests/minefleet/runs/test_checkpoint_files.py::test_prune_keeps_the_checkpoints_of_save_and_keep_interval_only"
    ],
    "advantages are chained across gaps": [
        f"{LEARNER}/algorithms/test_fragment_chain_advantages.py::test_chain_breaks_at_a_gap"
    ],
    "the reference starts every fragment afresh": [
        f"{LEARNER}/targets/test_reference_policy_state_cache.py::test_reference_state_is_carried_along_its_stream_within_a_batch_and_to_the_next",
        f"{LEARNER}/targets/test_reference_policy_state_cache.py::test_reference_state_without_the_fragment_before_is_the_stored_one",
    ],
    "a variance below zero by rounding makes advantages NaN": [
        f"{LEARNER}/test_faults_elsewhere.py::test_advantages_that_hardly_vary_are_normalised_to_finite_numbers"
    ],
    "mixed precision on one side of the ratio": [
        f"{LEARNER}/test_keys.py::test_mixed_precision_trains_with_a_ratio_of_one_at_first_and_float32_outputs"
    ],
    "staleness is that of some chunks alone": [
        f"{LEARNER}/test_loop.py::test_learner_prefetches_the_next_batch_and_releases_it_at_the_end"
    ],
}
"""Fault to tests."""


@cache
def functions_of(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_a_test_that_is_there(fault: str) -> None:
    assert FAULTS[fault]
    for place in FAULTS[fault]:
        path, _, name = place.partition("::")
        assert name in functions_of(path)


def test_product_code_starts_no_debugger() -> None:
    starters = [
        path.name
        for folder in ("clients", "services")
        for path in (ROOT / folder).rglob("*.py")
        if any(word in path.read_text() for word in ("breakpoint()", "set_trace(", "post_mortem("))
    ]
    assert not starters


@given(mean=st.floats(-1e6, 1e6), spread=st.floats(0, 1e-3), seed=st.integers(0, 99))
def test_advantages_that_hardly_vary_are_normalised_to_finite_numbers(mean: float, spread: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    advantage = mean + spread * torch.randn(4, 7, generator=generator)
    mask = torch.rand(4, 7, generator=generator) < 0.8
    assert math.isfinite(float(normalize(advantage, mask).abs().max()))
