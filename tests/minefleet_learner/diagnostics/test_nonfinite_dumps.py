"""Steps that are not finite are kept, and can be repeated."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.updates import equal, make_batch, weights

from minefleet.config import FleetConfig, PolicyConfig, TrainConfig
from minefleet.core.errors import ConfigError
from minefleet.core.fragment import Fragment
from minefleet.core.schema import Schema
from minefleet.runs.run_yaml import Run
from minefleet_learner.build import build_updater
from minefleet_learner.checkpoints.restore import load_snapshot
from minefleet_learner.data.batch import Batch
from minefleet_learner.diagnostics.nonfinite_dumps import MAX_DUMPS, BadStepDumps, read_dump
from minefleet_learner.training.optimizer_step import BAD_STEPS
from minefleet_learner.training.schedules import rates
from minefleet_learner.training.updater import Updater

Make = Callable[..., Fragment]
CPU = torch.device("cpu")
NAN, HUGE = float("nan"), 1e38


def make_run(directory: Path, schema: Schema, **train: Any) -> Run:
    settings: dict[str, Any] = {"batch_size_per_gpu": 2, "batches_per_iteration": 3, "gradient_accumulation": 3} | train
    config = FleetConfig(
        policy=PolicyConfig(hidden_size=8, hidden_layers=1, gru_size=5), train_config=TrainConfig(**settings)
    )
    run = Run(directory=directory, config=config, schema=schema, architecture="")
    run.write()
    return run


def poisoned(make: Make, field: str, value: float) -> Batch:
    batch = make_batch(make, 0, 5)
    tensor = batch.seen["vector"] if field == "obs" else getattr(batch, field)
    tensor[3, 1] = value
    return batch


def update(updater: Updater, batch: Batch) -> int:
    return updater.update(batch, rates(TrainConfig(), 0, 0.0)).skipped_steps


@pytest.mark.parametrize(("field", "value"), [("reward", HUGE), ("obs", NAN)])
def test_nonfinite_dump_keeps_the_fragment_that_spoils_estimates_alone(
    tmp_path: Path, schema: Schema, make_fragment: Make, field: str, value: float
) -> None:
    updater = build_updater(make_run(tmp_path, schema), CPU)
    batch = poisoned(make_fragment, field, value)
    assert update(updater, batch) == 1
    bad = read_dump(tmp_path / BAD_STEPS / "00000", CPU).bad
    assert bad.prepared is None
    assert batch.names[3] in bad.batch.names
    kept = bad.batch.seen["vector"] if field == "obs" else bad.batch.reward
    assert (kept == value).any() or kept.isnan().any()


@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_a_bad_step_is_repeated_from_the_same_weights_and_is_not_finite_again(
    tmp_path: Path, schema: Schema, make_fragment: Make, kl: float
) -> None:
    run = make_run(tmp_path, schema, gae_values="behaviour", kl_divergence_coef_rho=kl)
    updater = build_updater(run, CPU)
    update(updater, make_batch(make_fragment, 7, 5))
    assert update(updater, poisoned(make_fragment, "obs", NAN)) == 1
    dumped = read_dump(tmp_path / BAD_STEPS / "00000", CPU)
    bad = dumped.bad
    assert bad.prepared is not None
    again = build_updater(dumped.run, CPU)
    load_snapshot(again, dumped.checkpoint)
    assert again.repeat(bad.prepared, [torch.tensor(one) for one in bad.micro_batches], bad.rates).skipped
    same = {name: torch.tensor(array) for name, array in dumped.checkpoint.policy.items()}
    assert equal(same, weights(updater.policy))
    assert [len(part) for part in dumped.bad.micro_batches] == [2, 2, 2]
    assert sorted(piece for part in dumped.bad.micro_batches for piece in part) == list(range(6))


@pytest.mark.parametrize("file", ["step.json", "batch.safetensors"])
@pytest.mark.parametrize("length", [None, 0, 20])
def test_a_damaged_dump_is_refused(
    tmp_path: Path, schema: Schema, make_fragment: Make, file: str, length: int | None
) -> None:
    update(build_updater(make_run(tmp_path, schema), CPU), poisoned(make_fragment, "obs", NAN))
    path = tmp_path / BAD_STEPS / "00000" / file
    path.unlink() if length is None else os.truncate(path, length)
    with pytest.raises(ConfigError, match="00000"):
        read_dump(path.parent, CPU)


def test_dumps_are_bounded_in_number_and_bytes(tmp_path: Path, schema: Schema, make_fragment: Make) -> None:
    run = make_run(tmp_path, schema, max_bad_steps=100)
    updater = build_updater(run, CPU)
    for _ in range(MAX_DUMPS + 2):
        update(updater, poisoned(make_fragment, "obs", NAN))
    assert len(list((tmp_path / BAD_STEPS).iterdir())) == MAX_DUMPS
    (tmp_path / "small").mkdir()
    small = make_run(tmp_path / "small", schema)
    kept = build_updater(small, CPU)
    tight = Updater(
        kept.policy, kept.optimizer, small.config.train_config, None, dump=BadStepDumps(small, most_bytes=100)
    )
    update(tight, poisoned(make_fragment, "obs", NAN))
    assert not (small.directory / BAD_STEPS).exists()


def test_nonfinite_dump_has_the_random_generators_from_before_the_step(
    tmp_path: Path, schema: Schema, make_fragment: Make
) -> None:
    run = make_run(tmp_path, schema, gae_values="behaviour", epochs_per_iteration=1)
    updater = build_updater(run, CPU)
    torch.manual_seed(3)
    update(updater, poisoned(make_fragment, "obs", NAN))
    torch.manual_seed(3)
    torch.randperm(6)
    dumped = read_dump(tmp_path / BAD_STEPS / "00000", CPU)
    assert torch.equal(torch.tensor(dumped.checkpoint.rng["torch"]), torch.get_rng_state())
    with pytest.raises(ConfigError, match="holds no step"):
        read_dump(tmp_path, CPU)
