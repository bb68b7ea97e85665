import json
from pathlib import Path

import numpy as np
import pytest

import minefleet
from minefleet.config.load import load
from minefleet.core.errors import ConfigError
from minefleet.core.schema import Schema
from minefleet.runs.checkpoint_files import Checkpoint, CheckpointState, write
from minefleet.runs.episode_table import EPISODE_COLUMNS
from minefleet.runs.run_yaml import Run

ROWS = [
    {"iteration": number, "env_steps": 100 * number, "episode_return_mean": mean, "episode_metrics": {"won": 0.5}}
    for number, mean in enumerate((None, 1.5, 2.5), 1)
]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(directory=tmp_path, config=load("cartpole"), schema=Schema(obs={}, action={}), architecture="")
    run.write()
    return run


def append(path: Path, *lines: object) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def test_metrics_and_episodes_are_read_anew_at_each_call_without_a_line_that_is_being_written(run: Run) -> None:
    results = minefleet.open(run.directory)
    assert (results.metrics(), results.episodes(), results.curve()) == ([], [], None)
    append(run.metrics, *ROWS[:2])
    run.episodes.write_text(f"{','.join(EPISODE_COLUMNS)}\n1,100,0.5,1,True,dig,3.0,2.5,7,True,False,,a-0,4,,{{}}\n1,1")
    (episode,) = results.episodes()
    assert (episode["evaluation"], episode["episode_return"], episode["length"]) == (True, 3.0, 7)
    assert results.metrics() == ROWS[:2]
    append(run.metrics, ROWS[2])
    with run.metrics.open("a") as file:
        file.write('{"iteration": 4, "env_st')
    assert results.metrics() == ROWS


def test_run_results_curve_is_drawn_into_the_run_directory(run: Run) -> None:
    append(run.metrics, *ROWS)
    curve = minefleet.open(str(run.directory)).curve()
    assert curve is not None and curve.parent == run.directory and curve.read_bytes().startswith(b"\x89PNG")


def test_checkpoints_are_listed_oldest_first_without_links(run: Run) -> None:
    results = minefleet.open(run.directory)
    assert results.checkpoints() == []
    for iteration in (9, 10, 100):
        state = CheckpointState(run_id="r", iteration=iteration)
        checkpoint = Checkpoint(state=state, policy={"w": np.ones(2)}, optimizer={}, rng={}, run="")
        write(run.checkpoints, checkpoint)
    assert [path.name for path in results.checkpoints()] == ["00000009", "00000010", "00000100"]


def test_a_run_shows_its_directory_and_its_configuration(run: Run) -> None:
    results = minefleet.open(run.directory)
    assert results.config == run.config
    assert repr(results) == f"<run in {run.directory}>"


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no run in"):
        minefleet.open(tmp_path)


def test_run_results_table_has_a_row_per_iteration_and_nested_keys_as_columns(run: Run) -> None:
    pytest.importorskip("pandas", reason="pandas is missing: pip install pandas")
    append(run.metrics, *ROWS)
    table = minefleet.open(run.directory).table()
    assert list(table["env_steps"]) == [100, 200, 300]
    assert list(table["episode_metrics.won"]) == [0.5, 0.5, 0.5]
