"""A learner starts from a checkpoint, from another run's weights, or afresh."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from minefleet.config import FleetConfig, PolicyConfig, TrainConfig
from minefleet.core.errors import ContractError
from minefleet.core.schema import Schema
from minefleet.policies.weight_arrays import architecture, to_numpy
from minefleet.rpc.weights.manifest import entries_of
from minefleet.rpc.weights.version_info import read_info
from minefleet.runs.checkpoint_files import CheckpointState, read, write
from minefleet.runs.exported_version import export
from minefleet.runs.run_yaml import Run
from minefleet.v1 import weights_pb2
from minefleet_learner.build import build_updater
from minefleet_learner.checkpoints.restore import restore, take_snapshot
from minefleet_learner.training.updater import Updater

CPU = torch.device("cpu")


def make_run(directory: Path, schema: Schema, *, seed: int = 1, hidden_size: int = 8, **train: Any) -> Run:
    config = FleetConfig(
        seed=seed, policy=PolicyConfig(hidden_size=hidden_size, hidden_layers=1), train_config=TrainConfig(**train)
    )
    return Run(directory=directory, config=config, schema=schema, architecture="")


def trained(run: Run) -> Updater:
    """An updater that has made a step."""
    updater = build_updater(run, CPU)
    sum(parameter.square().sum() for parameter in updater.policy.parameters()).backward()  # type: ignore[union-attr]
    updater.optimizer.step()
    return updater


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_build_updater_with_the_same_seed_gives_the_same_policy(tmp_path: Path, schema: Schema) -> None:
    one, two, other = (build_updater(make_run(tmp_path, schema, seed=seed), CPU).policy for seed in (1, 1, 2))
    assert same(one.state_dict(), two.state_dict())
    assert not same(one.state_dict(), other.state_dict())


def test_a_fresh_run_has_a_name_of_its_own_and_counts_from_zero(tmp_path: Path, schema: Schema) -> None:
    run = make_run(tmp_path, schema)
    states = [restore(run, build_updater(run, CPU)) for _ in range(2)]
    assert states[0].run_id != states[1].run_id
    assert states[0] == CheckpointState(run_id=states[0].run_id)


def test_zero_initial_vf_zeroes_the_value_of_a_fresh_run_only(tmp_path: Path, schema: Schema) -> None:
    run = make_run(tmp_path, schema, zero_initial_vf=True)
    fresh = build_updater(run, CPU)
    restore(run, fresh)
    assert not fresh.policy.value_head.weight.any()
    write(run.checkpoints, take_snapshot(trained(run), CheckpointState(run_id="r", iteration=1), ""))
    again = build_updater(run, CPU)
    restore(run, again)
    assert again.policy.value_head.weight.any()


def test_a_run_with_a_checkpoint_goes_on_from_it(tmp_path: Path, schema: Schema) -> None:
    run = make_run(tmp_path, schema)
    updater, state = trained(run), CheckpointState(run_id="r", iteration=7, env_steps=70, stopped_by="minutes")
    write(run.checkpoints, take_snapshot(updater, state, ""))
    again = build_updater(replace(run, config=replace(run.config, seed=5)), CPU)
    assert restore(run, again) == replace(state, stopped_by="")
    assert same(updater.policy.state_dict(), again.policy.state_dict())


@pytest.mark.parametrize("resume_optimizer", [True, False])
def test_restore_from_another_runs_checkpoint_starts_a_new_run(
    tmp_path: Path, schema: Schema, resume_optimizer: bool
) -> None:
    old = trained(make_run(tmp_path, schema))
    write(tmp_path / "old", take_snapshot(old, CheckpointState(run_id="old", iteration=9, version=9), ""))
    run = make_run(
        tmp_path, schema, seed=2, resume="old/latest", resume_optimizer=resume_optimizer, kl_divergence_coef_rho=0.1
    )
    updater = build_updater(run, CPU)
    state = restore(run, updater)
    assert state == CheckpointState(run_id=state.run_id)
    assert state.run_id != "old"
    assert same(updater.policy.state_dict(), old.policy.state_dict())
    assert updater.reference is not None
    assert same(updater.reference.state_dict(), old.policy.state_dict())
    assert bool(updater.optimizer.state_dict()["state"]) == resume_optimizer


def test_an_exported_version_starts_a_new_run_with_its_weights_only(tmp_path: Path, schema: Schema) -> None:
    before = make_run(tmp_path / "before", schema)
    before.directory.mkdir()
    before.write()
    old = trained(before)
    weights = to_numpy(old.policy)
    info = read_info(weights_pb2.VersionInfo(version=9, run_id="old"))
    export(tmp_path / "out", before, info, entries_of(architecture(old.policy)), lambda entry: weights[entry.name])
    run = make_run(tmp_path, schema, seed=2, resume="out", resume_optimizer=False)
    updater = build_updater(run, CPU)
    assert restore(run, updater).version == 0
    assert same(updater.policy.state_dict(), old.policy.state_dict())
    assert not updater.optimizer.state_dict()["state"]
    other = build_updater(before, CPU)
    other.policy.load_state_dict(load_file(tmp_path / "out/model.safetensors"))
    assert same(other.policy.state_dict(), old.policy.state_dict())


def test_the_reference_stays_what_it_was_at_the_start_of_the_run(tmp_path: Path, schema: Schema) -> None:
    run = make_run(tmp_path, schema, kl_divergence_coef_rho=0.1)
    updater = trained(run)
    start = {name: tensor.clone() for name, tensor in updater.policy.state_dict().items()}
    updater.reference.load_state_dict(start)  # type: ignore[union-attr]
    updater.optimizer.step()
    write(run.checkpoints, take_snapshot(updater, CheckpointState(run_id="r", iteration=3), ""))
    again = build_updater(run, CPU)
    restore(run, again)
    assert again.reference is not None
    assert same(again.reference.state_dict(), start)
    assert not same(again.policy.state_dict(), start)


def test_a_checkpoint_of_another_policy_is_refused_with_the_tensors_that_differ(tmp_path: Path, schema: Schema) -> None:
    run = make_run(tmp_path, schema)
    write(run.checkpoints, take_snapshot(trained(run), CheckpointState(run_id="r", iteration=1), ""))
    larger = make_run(tmp_path, schema, hidden_size=9)
    with pytest.raises(ContractError, match=r"value_head\.weight"):
        restore(larger, build_updater(larger, CPU))


def test_a_checkpoint_holds_the_text_of_the_run_and_copies_not_views(tmp_path: Path, schema: Schema) -> None:
    run = make_run(tmp_path, schema)
    updater = trained(run)
    snapshot = take_snapshot(updater, CheckpointState(run_id="r"), "config: {}\n")
    before = {name: array.copy() for name, array in (snapshot.policy | snapshot.optimizer).items()}  # type: ignore[operator]
    updater.optimizer.step()
    for name, array in (snapshot.policy | snapshot.optimizer).items():  # type: ignore[operator]
        np.testing.assert_array_equal(array, before[name])
    assert read(write(tmp_path, snapshot)).run == "config: {}\n"


def test_resume_auto_starts_afresh_where_the_run_has_no_checkpoint(tmp_path: Path, schema: Schema) -> None:
    run = make_run(tmp_path, schema, resume="auto")
    assert restore(run, build_updater(run, CPU)).iteration == 0
    write(run.checkpoints, take_snapshot(trained(run), CheckpointState(run_id="r", iteration=4), ""))
    assert restore(run, build_updater(run, CPU)).iteration == 4


def test_the_best_checkpoint_of_a_run_starts_a_new_one(tmp_path: Path, schema: Schema) -> None:
    best = trained(make_run(tmp_path, schema))
    state = CheckpointState(run_id="old", iteration=1, best_return=3.0, best_iteration=1)
    write(tmp_path / "old", take_snapshot(best, state, ""))
    later = trained(make_run(tmp_path, schema, seed=5))
    write(tmp_path / "old", take_snapshot(later, replace(state, iteration=2), ""))
    run = make_run(tmp_path, schema, seed=2, resume="old/best")
    updater = build_updater(run, CPU)
    restore(run, updater)
    assert same(updater.policy.state_dict(), best.policy.state_dict())
