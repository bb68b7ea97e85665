import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.minefleet.launch.finding import find

from minefleet.config.load import PIXELS, load, merge, read_settings
from minefleet.config.replay_partitioning import NUM_SHARDS, spread
from minefleet.core.errors import ConfigError
from minefleet.core.schema import Leaf, Schema
from minefleet.launch.run_directory_checks import check_checkpoint, check_vacant, check_writable
from minefleet.launch.run_directory_setup import configure, join, prepare_resumed
from minefleet.launch.run_lock import holding
from minefleet.runs.checkpoint_files import Checkpoint, CheckpointState, write
from minefleet.runs.run_yaml import Run, read_run, to_dict


@pytest.fixture
def run(tmp_path: Path) -> Run:
    schema = Schema(
        obs=Leaf(kind="box", shape=(4,), dtype="float32"),
        action=Leaf(kind="discrete", shape=(), dtype="int64", categories=(2,)),
    )
    return Run(directory=tmp_path / "run", config=load("cartpole"), schema=schema, architecture="abc")


def give_store(store: Path, run_id: str) -> None:
    store.mkdir(parents=True)
    (store / "identity.json").write_text(json.dumps({"run_id": run_id}))


def give_checkpoint(run: Run, run_id: str) -> Path:
    weights = {"w": np.ones(3, np.float32)}
    state = CheckpointState(run_id=run_id, iteration=3)
    return write(run.checkpoints, Checkpoint(state=state, policy=weights, optimizer={}, rng={}, run=""))


def test_check_vacant_accepts_a_missing_or_empty_directory(run: Run) -> None:
    check_vacant(run)
    run.directory.mkdir()
    check_vacant(run)


def test_a_directory_that_holds_a_run_is_refused(run: Run) -> None:
    run.directory.mkdir()
    run.write()
    with pytest.raises(ConfigError, match=r"already holds a run; continue it with --resume"):
        check_vacant(run)


def test_a_store_of_another_run_is_refused_by_its_name(run: Run) -> None:
    give_store(run.replay, "run-7")
    with pytest.raises(ConfigError, match="holds run run-7"):
        check_vacant(run)


def test_a_store_of_one_shard_of_another_run_is_refused(run: Run) -> None:
    give_store(run.replay / "1", "run-7")
    with pytest.raises(ConfigError, match="replay/1 holds run run-7"):
        check_vacant(run)


@pytest.mark.parametrize(
    ("before", "override", "message"),
    [
        ([], f"{NUM_SHARDS}=2", f"cannot change within a run: .* has 1, {NUM_SHARDS} says 2"),
        ([f"{NUM_SHARDS}=2"], f"{NUM_SHARDS}=1", f"cannot change within a run: .* has 2, {NUM_SHARDS} says 1"),
        ([f"{NUM_SHARDS}=2"], "services.replay=[{}]", r"has 2, services\.replay says 1"),
    ],
)
def test_the_number_of_shards_cannot_change_within_a_run(
    run: Run, before: list[str], override: str, message: str
) -> None:
    previous = replace(run, config=spread(load("cartpole", before)))
    changed = merge(to_dict(previous.config), "run.yaml", [override])
    with pytest.raises(ConfigError, match=message):
        prepare_resumed(changed, previous)


def test_join_may_leave_num_shards_to_be_counted_from_the_endpoints(run: Run) -> None:
    endpoints = ["services.replay[0].address=127.0.0.1:7", "services.replay[1].address=127.0.0.1:8"]
    listed = load("cartpole", endpoints)
    run = replace(run, config=spread(listed))
    run.directory.mkdir()
    run.write()
    assert join(listed, run.directory) == run


def test_checkpoints_of_another_run_are_refused(run: Run) -> None:
    give_checkpoint(run, "run-7")
    with pytest.raises(ConfigError, match="holds another run's checkpoints"):
        check_vacant(run)


def test_a_run_resumes_with_stores_of_its_own(run: Run) -> None:
    give_checkpoint(run, "run-7")
    give_store(run.replay, "run-7")
    give_store(run.parameters, "")
    check_checkpoint(run)


@pytest.mark.parametrize("which", ["replay", "parameters"])
def test_a_run_does_not_resume_with_a_store_of_another(run: Run, which: str) -> None:
    give_checkpoint(run, "run-7")
    give_store(getattr(run, which), "run-8")
    with pytest.raises(ConfigError, match=r"holds run run-8, but the checkpoint .* is of run run-7"):
        check_checkpoint(run)


def test_a_run_does_not_resume_on_other_spaces_or_with_another_architecture(run: Run) -> None:
    give_checkpoint(run, "run-7")
    with pytest.raises(ConfigError, match="was trained on other spaces"):
        prepare_resumed(run.config, run)
    schema = find(run.config).schema
    with pytest.raises(ConfigError, match="was trained with another architecture"):
        prepare_resumed(run.config, replace(run, schema=schema))


def test_a_run_resumes_from_its_checkpoints_and_its_run_file_alone(run: Run) -> None:
    found = find(run.config)
    restored = replace(run, schema=found.schema, architecture=found.architecture)
    give_checkpoint(restored, "run-7")
    prepare_resumed(restored.config, restored)
    assert restored.logs.is_dir()


def test_a_store_without_a_checkpoint_is_refused(run: Run) -> None:
    give_store(run.replay, "run-8")
    with pytest.raises(ConfigError, match="holds run run-8, but there is no checkpoint"):
        check_checkpoint(run)


def test_a_damaged_identity_is_named(run: Run) -> None:
    give_store(run.replay, "run-7")
    (run.replay / "identity.json").write_text("{")
    with pytest.raises(ConfigError, match=r"identity\.json is damaged"):
        check_checkpoint(run)


@pytest.mark.parametrize("name", ["policy.safetensors", "state.json"])
def test_a_truncated_checkpoint_is_refused(run: Run, name: str) -> None:
    file = give_checkpoint(run, "run-7") / name
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(ConfigError, match=f"damaged: {name}"):
        check_checkpoint(run)


def test_a_folder_that_is_a_file_cannot_hold_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=f"{tmp_path}/file is a file"):
        check_writable(tmp_path / "file" / "run")
    with pytest.raises(ConfigError, match=rf"cannot write train_config\.save_path {tmp_path}/file/x"):
        check_writable(tmp_path / "file" / "x", "train_config.save_path")


def test_run_lock_of_a_held_run_is_refused_to_another_launcher(tmp_path: Path) -> None:
    with holding(tmp_path), pytest.raises(ConfigError, match="in use by another launcher"), holding(tmp_path):
        pass
    with holding(tmp_path):
        pass


def test_configure_of_a_prepared_run_changes_keys_that_roles_need_not_agree_on(run: Run) -> None:
    run.directory.mkdir()
    run.write()
    (run.directory / "result.json").write_text("{}")
    assert configure(run.config, run.directory) == run
    assert (run.directory / "result.json").exists()
    longer = merge(to_dict(run.config), "test", ["stop.env_steps=300000", "services.drain_s=3"])
    settled = configure(longer, run.directory)
    assert settled == read_run(run.directory)
    assert settled.config.stop.env_steps == 300000
    assert settled.config.services == run.config.services
    assert not (run.directory / "result.json").exists()
    with pytest.raises(ConfigError, match=r"train_config\.discount is"):
        configure(merge(to_dict(run.config), "test", ["train_config.discount=0.5"]), run.directory)


def test_configure_of_a_prepared_run_may_change_its_addresses(run: Run) -> None:
    run.directory.mkdir()
    run.write()
    endpoint = "{address: replay:7000, listen: 0.0.0.0:7000, metrics_address: 0.0.0.0:9100}"
    moves = [f"services.{role}={endpoint}" for role in ("parameters", "learner")]
    moved = configure(merge(to_dict(run.config), "test", [f"services.replay=[{endpoint}]", *moves]), run.directory)
    assert moved.config.services.learner.listen == "0.0.0.0:7000"


def test_join_with_another_configuration_is_refused_by_its_keys(run: Run) -> None:
    run.directory.mkdir()
    run.write()
    assert join(run.config, run.directory) == run
    other = replace(run.config, train_config=replace(run.config.train_config, discount=0.5))
    with pytest.raises(ConfigError, match=r"train_config\.discount is 0\.98 there and 0\.5 here"):
        join(other, run.directory)


def test_a_run_is_configured_for_what_its_environment_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minefleet.launch.run_directory_setup.check_env_and_policy", find)
    path = tmp_path / "mine.yaml"
    path.write_text("env: {id: minefleet/Crafter-v0}\nstop: {env_steps: 1000}\n")
    settings = read_settings(str(path))
    run = configure(settings.of(), tmp_path / "run", of=settings.of)
    assert run.config.train_config == load(PIXELS).train_config
    assert run == read_run(run.directory) == join(settings.of(), run.directory, of=settings.of)
