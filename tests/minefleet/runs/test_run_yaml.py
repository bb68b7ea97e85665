from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from minefleet.core.errors import ConfigError
from minefleet.rpc.weights.version_info import VersionInfo
from minefleet.runs.checkpoint_files import Checkpoint, CheckpointState, write
from minefleet.runs.exported_version import CONFIG_FILE, export
from minefleet.runs.run_yaml import RUN_FILE, Run, read_run

TAKEN = "; `minefleet eval` and `minefleet.load` take it, and train_config.resume trains on"
INFO = VersionInfo(
    version=1,
    epoch=1,
    run_id="r",
    iteration=1,
    architecture="a",
    tensors=0,
    size_bytes=0,
    publish_time=datetime(2026, 1, 2, tzinfo=UTC),
    pinned=False,
)


STALENESS = "rollout_config.replay_buffer_config.max_staleness"


def test_settings_change_a_run_and_not_what_its_roles_compare(run: Run) -> None:
    changed = run.with_settings(f'{{"{STALENESS}": 3}}')
    assert changed.config.rollout_config.replay_buffer_config.max_staleness == 3
    assert changed.contract() == run.contract()
    other = changed.with_settings('{"train_config.ppo_clip": 0.1}')
    assert other.config.rollout_config == run.config.rollout_config
    assert other.with_settings("").config == run.config


@pytest.mark.parametrize("settings", ["{", "[[1, 2]]", "[" * 10**5, f'{{"{STALENESS}": "3 days"}}', '{"seed": 3}'])
def test_settings_that_are_none_are_refused(run: Run, settings: str) -> None:
    with pytest.raises(ConfigError):
        run.with_settings(settings)


def refusal(directory: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        read_run(directory)
    start = f"there is no run in {directory}: "
    assert str(refused.value).startswith(start)
    return str(refused.value).removeprefix(start)


def test_read_run_of_a_checkpoint_says_what_it_is_and_reads_its_copy_when_asked(run: Run) -> None:
    text = (run.directory / RUN_FILE).read_text()
    state = CheckpointState(run_id="r", iteration=1)
    write(run.checkpoints, Checkpoint(state=state, policy={"w": np.ones(2)}, optimizer={}, rng={}, run=text))
    assert refusal(run.checkpoints / "latest") == f"it is a checkpoint{TAKEN}"
    assert read_run(run.checkpoints / "latest", RUN_FILE).config == run.config


def test_read_run_of_an_exported_version_says_what_it_is_and_reads_its_copy_when_asked(run: Run) -> None:
    target = run.directory / "exported"
    export(target, run, INFO, [], lambda _: np.ones(1))
    assert refusal(target) == f"it is an exported version{TAKEN}"
    assert read_run(target, CONFIG_FILE).config == run.config


def test_read_run_of_what_lies_in_a_run_or_holds_runs_names_them(run: Run) -> None:
    run.checkpoints.mkdir()
    assert refusal(run.checkpoints) == f"it lies in the run {run.directory}"
    assert refusal(run.directory / RUN_FILE) == f"it lies in the run {run.directory}"
    run.checkpoints.rename(run.directory / "one")
    (run.directory / RUN_FILE).rename(run.directory / "one" / RUN_FILE)
    assert refusal(run.directory) == "it holds one"


def test_read_run_of_nothing_says_so(tmp_path: Path) -> None:
    assert refusal(tmp_path) == "it has no run.yaml"
    assert refusal(tmp_path / "nowhere") == "it does not exist"
