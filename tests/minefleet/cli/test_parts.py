import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minefleet.cli.commands.demo import story
from minefleet.cli.commands.train import finish
from minefleet.cli.config_arguments import required, split
from minefleet.cli.output.readable_text import program
from minefleet.cli.output.summary import Outcome, describe_end, summarise
from minefleet.config.load import load
from minefleet.core.errors import ConfigError
from minefleet.core.schema import Schema
from minefleet.launch.role_supervisor import LaunchEnd
from minefleet.monitoring.journal import append
from minefleet.monitoring.learner_requests_in_journal import PAUSE
from minefleet.runs.checkpoint_files import Checkpoint, CheckpointState, write
from minefleet.runs.default_run_directory import fresh_directory
from minefleet.runs.run_yaml import Run
from minefleet.runs.trained_policy_files import find_checkpoint

ROW = {"iteration": 3, "env_steps": 300, "trained_steps": 200, "episode_return_mean": 7.5}
RESULT = {**ROW, "skipped_steps": 3, "env_steps": 400, "stopped_by": "env_steps", "checkpoint": "elsewhere"}
OVER = Outcome(ending=LaunchEnd(stopped_by="learner"), wall_s=12.34)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(directory=tmp_path, config=load("cartpole"), schema=Schema(obs={}, action={}), architecture="")
    run.write()
    return run


def give_checkpoint(run: Run) -> Path:
    weights = {"w": np.ones(3, np.float32)}
    state = CheckpointState(run_id="run-7", iteration=3)
    return write(run.checkpoints, Checkpoint(state=state, policy=weights, optimizer={}, rng={}, run=""))


def test_summary_of_a_run_takes_its_numbers_from_the_learners_result(run: Run) -> None:
    checkpoint = give_checkpoint(run)
    (run.directory / "result.json").write_text(json.dumps(RESULT))
    assert summarise(run, OVER) == {
        "run_dir": str(run.directory),
        "episode_return_mean": 7.5,
        "env_steps": 400,
        "trained_steps": 200,
        "skipped_steps": 3,
        "wall_s": 12.3,
        "checkpoint": str(checkpoint),
        "stopped_by": "env_steps",
    }


def test_summary_of_a_stopped_run_that_has_reached_its_bound_names_the_bound(run: Run) -> None:
    (run.directory / "result.json").write_text(json.dumps(RESULT | {"stopped_by": "signal"}))
    outcome = Outcome(ending=LaunchEnd(stopped_by="learner"), wall_s=0.0, reached="env_steps")
    assert summarise(run, outcome)["stopped_by"] == "env_steps"
    assert finish(run, outcome) == 0


def test_summary_of_a_run_without_a_result_is_of_its_last_metrics(run: Run) -> None:
    run.metrics.write_text(json.dumps(ROW) + "\n")
    failed = Outcome(ending=LaunchEnd(stopped_by="failure", reason="actor-0 died"), wall_s=1.0)
    summary = summarise(run, failed)
    assert (summary["env_steps"], summary["checkpoint"], summary["stopped_by"]) == (300, None, "failure")


@pytest.mark.parametrize(
    ("ending", "result", "code"),
    [
        (LaunchEnd(stopped_by="learner"), RESULT, 0),
        (LaunchEnd(stopped_by="signal"), {**RESULT, "stopped_by": "signal"}, 130),
        (LaunchEnd(stopped_by="failure", reason="the reason"), RESULT, 1),
        (LaunchEnd(stopped_by="failure", reason="the reason", is_config_error=True), RESULT, 2),
    ],
)
def test_the_exit_code_tells_how_a_run_ended_and_stdout_holds_one_json_line(
    run: Run, capsys: pytest.CaptureFixture[str], ending: LaunchEnd, result: dict[str, Any], code: int
) -> None:
    (run.directory / "result.json").write_text(json.dumps(result))
    assert finish(run, Outcome(ending=ending, wall_s=1.0)) == code
    out, errors = capsys.readouterr()
    assert out.count("\n") == 1 and json.loads(out)["env_steps"] == 400
    assert ("the reason" in errors) == (ending.stopped_by == "failure")


@pytest.mark.parametrize(("stopped_by", "code"), [("learner", 1), ("signal", 130)])
def test_the_end_of_a_run_that_is_paused_says_so_and_names_the_rollback(
    run: Run, capsys: pytest.CaptureFixture[str], stopped_by: Any, code: int
) -> None:
    append(run.directory, "start", ROW, learner="one")
    append(run.directory, PAUSE, ROW, learner="one", id="pause", reason="the entropy fell")
    outcome = Outcome(ending=LaunchEnd(stopped_by=stopped_by), wall_s=1.0)
    assert finish(run, outcome) == code
    assert ("the entropy fell" in capsys.readouterr().err) == (code == 1)
    text = describe_end(run, summarise(run, outcome))
    assert "paused        the policy has collapsed: the entropy fell" in text and f"rollback {run.directory}" in text


def test_find_checkpoint_of_a_run_returns_its_last_checkpoint(run: Run) -> None:
    with pytest.raises(ConfigError, match="has no checkpoint yet"):
        find_checkpoint(run.directory)
    checkpoint = give_checkpoint(run)
    assert find_checkpoint(run.directory) == find_checkpoint(checkpoint) == checkpoint


def test_split_tells_the_config_from_overrides_and_refuses_two_configs() -> None:
    assert split(["seed=1", "cartpole", "stop.minutes=2"]) == ("cartpole", ["seed=1", "stop.minutes=2"])
    assert split(["seed=1"]) == ("", ["seed=1"])
    with pytest.raises(ConfigError, match="one CONFIG, got cartpole and pendulum"):
        split(["cartpole", "pendulum"])


def test_a_run_is_named_after_its_config_or_its_environment() -> None:
    assert required("ALE/Pong-v5", ["env.id=CartPole-v1"]) == "Pong-v5"
    assert required("", ["env.id=CartPole-v1", "seed=3"]) == "CartPole-v1"
    assert required("", ["env.generator=my/world.py:make"]) == "make"
    with pytest.raises(ConfigError, match="give a CONFIG"):
        required("", ["seed=3"])


def test_the_demo_compares_and_says_what_to_try_next(tmp_path: Path) -> None:
    before = {"return_mean": 1.4, "video": "random.mp4"}
    told = story(tmp_path, before, {"return_mean": 3.25, "video": "version-7.mp4"})
    assert "3.25 after training, 1.40 of a random policy" in told
    assert "random.mp4" in told and "version-7.mp4" in told and "curve.png" in told
    assert told.count("\n    minefleet ") == 3


def test_the_end_of_a_run_names_the_best_return_the_files_that_there_are_and_the_bound_to_move(run: Run) -> None:
    rows = [
        {**ROW, "iteration": at, "episode_return_mean": mean} for at, mean in ((1, None), (2, 9.0), (3, 9.0), (4, 7.5))
    ]
    rows[-1]["episode_failures"] = 1071
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    checkpoint = give_checkpoint(run)
    (run.directory / "result.json").write_text(json.dumps(RESULT))
    lines = describe_end(run, summarise(run, OVER)).splitlines()
    assert "trained       4 iterations, 400 env steps; this launch took 0:12" in lines
    assert "return        7.50 at the end, 9.00 at best (iteration 2)" in lines
    assert f"failures      1,071 episodes; `{program()} deaths {run.directory}` says why" in lines
    assert f"checkpoint    {checkpoint}" in lines
    assert not [line for line in lines if line.startswith("curve")]
    assert lines[-1].endswith(f"train --resume {run.directory} stop.env_steps=400000")
    assert "eval" in lines[-2]
    (run.directory / "result.json").write_text(json.dumps({**RESULT, "stopped_by": "episode_return"}))
    assert describe_end(run, summarise(run, OVER)).endswith(" stop.episode_return=null")


def test_the_end_of_a_run_without_an_iteration_is_described(run: Run) -> None:
    failed = Outcome(ending=LaunchEnd(stopped_by="failure", reason="actor-0 died"), wall_s=1.0)
    text = describe_end(run, summarise(run, failed))
    assert "trained       0 iterations, 0 env steps" in text and "eval" not in text


def test_fresh_directories_made_at_once_have_names_of_their_own_and_empty_ones_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def make(_: int) -> Path:
        with fresh_directory("cartpole") as directory:
            (directory / "run.yaml").touch(exist_ok=False)
        return directory

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(make, range(40)))
    assert len(set(made)) == 40 and all(path.exists() for path in made)
    with pytest.raises(ConfigError, match="refused"), fresh_directory("cartpole") as refused:
        assert refused.exists()
        raise ConfigError("refused")
    assert not refused.exists()
