"""Steps that are not finite are kept, and can be repeated."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.updates import equal, make_batch, weights

from minefleet.config import FleetConfig, PolicyConfig, TrainConfig
from minefleet.errors import ConfigError
from minefleet.fragment import Fragment
from minefleet.run import Run
from minefleet.schema import Schema
from minefleet_learner.assembly import build_updater
from minefleet_learner.batch import Batch
from minefleet_learner.dumps import MOST_DUMPS, Dumps, read_dump
from minefleet_learner.rerun import report
from minefleet_learner.schedule import rates
from minefleet_learner.stepping import BAD_STEPS
from minefleet_learner.update import Updater

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


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("reward", HUGE, "s1/1: the target squared of step 0 is not finite"),
        ("obs", NAN, "s1/1: the observation vector"),
    ],
)
def test_a_poisoned_fragment_is_kept_and_the_repetition_names_it(
    tmp_path: Path, schema: Schema, make_fragment: Make, field: str, value: float, said: str
) -> None:
    run = make_run(tmp_path, schema)
    updater = build_updater(run, CPU)
    assert update(updater, poisoned(make_fragment, field, value)) == 1
    lines = list(report(read_dump(tmp_path / BAD_STEPS / "00000", CPU)))
    assert any(line.startswith(said) for line in lines)


@pytest.mark.filterwarnings("ignore:Error detected in")  # Torch says where, which is wanted.
@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_a_bad_step_is_repeated_from_the_same_weights_and_is_not_finite_again(
    tmp_path: Path, schema: Schema, make_fragment: Make, kl: float
) -> None:
    run = make_run(tmp_path, schema, gae_values="behaviour", kl_divergence_coef_rho=kl)
    updater = build_updater(run, CPU)
    update(updater, make_batch(make_fragment, 7, 5))
    assert update(updater, poisoned(make_fragment, "obs", NAN)) == 1
    dumped = read_dump(tmp_path / BAD_STEPS / "00000", CPU)
    lines = list(report(dumped))
    assert "the step is not finite again" in lines
    assert any(line.startswith("s1/1: the observation vector number 1 is not") for line in lines)
    same = {name: torch.tensor(array) for name, array in dumped.checkpoint.policy.items()}
    assert equal(same, weights(updater.policy))
    assert [len(part) for part in dumped.bad.micro_batches] == [2, 2, 2]
    assert sorted(piece for part in dumped.bad.micro_batches for piece in part) == list(range(6))


def test_what_a_module_makes_of_finite_inputs_is_named(tmp_path: Path, schema: Schema, make_fragment: Make) -> None:
    run = make_run(tmp_path, schema, gae_values="behaviour")
    updater = build_updater(run, CPU)
    with torch.no_grad():
        updater.policy.action_head.linear.bias.fill_(float("inf"))  # type: ignore[union-attr, operator]
    assert update(updater, make_batch(make_fragment, 0, 5)) == 1
    lines = list(report(read_dump(tmp_path / BAD_STEPS / "00000", CPU)))
    assert lines[-1] == "first not finite: what the module action_head.linear makes of finite inputs"


def test_a_loss_that_overflows_is_named_with_the_weights_that_made_it_so(
    tmp_path: Path, schema: Schema, make_fragment: Make
) -> None:
    run = make_run(tmp_path, schema, gae_values="behaviour")
    updater = build_updater(run, CPU)
    with torch.no_grad():
        updater.policy.value_head.bias.fill_(HUGE)
    assert update(updater, make_batch(make_fragment, 0, 5)) == 1
    lines = list(report(read_dump(tmp_path / BAD_STEPS / "00000", CPU)))
    assert any(line.startswith("the largest weight is") and line.endswith("in value_head.bias") for line in lines)
    assert lines[-1] == "first not finite: the loss's part value is inf, made of finite outputs"


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


def test_the_command_repeats_a_step(tmp_path: Path, schema: Schema, make_fragment: Make) -> None:
    run = make_run(tmp_path, schema, gae_values="behaviour")
    update(build_updater(run, CPU), poisoned(make_fragment, "obs", NAN))
    command = [sys.executable, "-m", "minefleet", "rerun-update", "--pdb", str(tmp_path / BAD_STEPS / "00000")]
    done = subprocess.run(command, input="continue\n" * 2, capture_output=True, text=True, check=True, timeout=120)
    assert "the step is not finite again" in done.stdout
    assert "(Pdb)" in done.stdout


def test_dumps_are_bounded_in_number_and_bytes(tmp_path: Path, schema: Schema, make_fragment: Make) -> None:
    run = make_run(tmp_path, schema, max_bad_steps=100)
    updater = build_updater(run, CPU)
    for _ in range(MOST_DUMPS + 2):
        update(updater, poisoned(make_fragment, "obs", NAN))
    assert len(list((tmp_path / BAD_STEPS).iterdir())) == MOST_DUMPS
    (tmp_path / "small").mkdir()
    small = make_run(tmp_path / "small", schema)
    kept = build_updater(small, CPU)
    tight = Updater(kept.policy, kept.optimizer, small.config.train_config, None, dump=Dumps(small, most_bytes=100))
    update(tight, poisoned(make_fragment, "obs", NAN))
    assert not (small.directory / BAD_STEPS).exists()


def test_the_generators_of_a_dump_are_those_before_the_step(
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
