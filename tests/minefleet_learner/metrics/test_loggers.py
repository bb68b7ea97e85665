import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minefleet.config import FleetConfig, LoggerConfig
from minefleet.core.schema import Schema
from minefleet.runs.checkpoint_files import CheckpointState
from minefleet.runs.episode_table import read_episodes
from minefleet.runs.run_yaml import Run
from minefleet.v1 import episode_pb2
from minefleet_learner.metrics.loggers import LINE_INTERVAL_S, JsonLines, MetricsLogger, flat_numbers, tracked_run


def read(path: Path) -> list[int]:
    return [json.loads(line)["iteration"] for line in path.read_text().splitlines()]


def make_run(directory: Path, schema: Schema, **logger: Any) -> Run:
    config = replace(FleetConfig(), logger_config=LoggerConfig(**logger))
    return Run(directory=directory, config=config, schema=schema, architecture="")


def test_rows_after_the_checkpoint_are_cut_off_so_that_no_counter_goes_back(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = JsonLines(path, after_iteration=0)
    for iteration in range(1, 6):
        lines.write({"iteration": iteration, "env_steps": 10 * iteration})
    lines.close()
    with path.open("a") as file:
        file.write('{"iteration": 6, "env_st')
    lines = JsonLines(path, after_iteration=3)
    assert read(path) == [1, 2, 3]
    lines.write({"iteration": 4})
    lines.close()
    assert read(path) == [1, 2, 3, 4]


def test_a_line_that_a_crash_left_unfinished_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"iteration": 1}\n{"iteration": 2')
    JsonLines(path, after_iteration=9).close()
    assert read(path) == [1]


def test_metrics_row_is_on_disk_once_written_and_has_null_for_what_is_not_finite(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = JsonLines(path, after_iteration=0)
    lines.write({"iteration": 1, "loss": float("nan"), "inner": {"a": float("inf"), "b": 1.5}, "none": None})
    assert json.loads(path.read_text()) == {"iteration": 1, "loss": None, "inner": {"a": None, "b": 1.5}, "none": None}
    lines.close()


def test_flat_numbers_leave_out_what_is_no_finite_number() -> None:
    row = {"iteration": 1, "loss": float("nan"), "episode_metrics": {"a/b": 2.0}, "mean": None, "starved_streams": []}
    row |= {"step_shares": {"": {"age_s": 1.0}, "dig": {"age_s": 2.0}}, "step_warnings": {"starved": "a text"}}
    shares = {"step_shares/age_s": 1.0, "step_shares/dig/age_s": 2.0}
    assert flat_numbers(row) == {"iteration": 1, "episode_metrics/a/b": 2.0, **shares}


def test_every_episode_is_a_line_of_the_table_and_those_after_the_checkpoint_are_cut_off(
    tmp_path: Path, schema: Schema
) -> None:
    def record(episode: int, **changes: Any) -> episode_pb2.EpisodeRecord:
        return episode_pb2.EpisodeRecord(stream="a-0", episode=episode, episode_return=2.5, length=7, **changes)

    played = {
        1: [record(0, terminated=True, policy_version=1), record(1, task="dig\n3", failure="hang")],
        2: [record(2, truncated=True, evaluation=True, metrics={"logs": 3.0})],
        3: [record(3), record(4)],
    }
    for first in (0, 2):
        journal = MetricsLogger(make_run(tmp_path, schema))
        journal.write({"iteration": 0})
        journal.open(CheckpointState(run_id="run", iteration=first))
        for iteration in range(first + 1, 4):
            state = CheckpointState(run_id="run", iteration=iteration, env_steps=10 * iteration, wall_s=0.5)
            journal.write({"iteration": iteration, "env_steps": state.env_steps})
            journal.write_episodes(played[iteration], state)
        journal.close()
        journal.close()
    assert read(tmp_path / "metrics.jsonl") == [1, 2, 3]
    with (tmp_path / "episodes.csv").open("a") as file:
        file.write("4,40,0.")
    rows = read_episodes(tmp_path / "episodes.csv")
    assert [(row["iteration"], row["episode"]) for row in rows] == [(1, 0), (1, 1), (2, 2), (3, 3), (3, 4)]
    assert rows[1] | {"task": "dig 3", "failure": "hang", "terminated": False} == rows[1]
    assert rows[2] == {
        "iteration": 2,
        "env_steps": 20,
        "wall_s": 0.5,
        "policy_version": 0,
        "evaluation": True,
        "task": "",
        "episode_return": 2.5,
        "discounted_return": 0.0,
        "length": 7,
        "terminated": False,
        "truncated": True,
        "failure": "",
        "stream": "a-0",
        "episode": 2,
        "video": "",
        "metrics": {"logs": 3.0},
    }


@pytest.mark.usefixtures("odd_trackers")
def test_trackers_get_grouped_numbers_and_the_videos_that_can_be_read(
    tmp_path: Path, schema: Schema, caplog: pytest.LogCaptureFixture
) -> None:
    film = tmp_path / "version-3-a-4.mp4"
    film.write_bytes(b"video")
    (tmp_path / "whole_config.txt").write_text("# as I wrote it")
    caplog.set_level("INFO")
    journal, state = MetricsLogger(make_run(tmp_path, schema, trackers=["writing"])), CheckpointState(run_id="run-id")
    journal.open(state)
    journal.write({"iteration": 1, "env_steps": 640, "episode_return_mean": 3.0, "policy_loss": None})
    for host, path in (("here", str(film)), ("elsewhere", "/not/here.mp4")):
        video = episode_pb2.Video(host=host, path=path)
        record = episode_pb2.EpisodeRecord(policy_version=3, episode_return=2, task="dig", video=video)
        journal.write_episodes([record], replace(state, env_steps=640))
    journal.close()
    assert [json.loads(line) for line in (tmp_path / "written.jsonl").read_text().splitlines()] == [
        ["start", ["run-id", tmp_path.name, "minefleet", 0, 0]],
        ["log", {"iteration": 1, "env_steps": 640, "episode/return_mean": 3.0}, 640],
        ["video", "video/dig", str(film), "version 3, return 2.00 dig", 640],
        ["close"],
    ]
    assert caplog.messages[1:] == [
        f"an episode of version 3 was filmed: {film}",
        "an episode of version 3 was filmed: /not/here.mp4 on elsewhere, which this learner cannot read",
    ]
    assert tracked_run(make_run(tmp_path, schema), state).config["whole_config"] == "# as I wrote it"


def test_trackers_get_again_what_holds_of_the_step_of_the_checkpoint(tmp_path: Path, schema: Schema) -> None:
    rows = [{"iteration": iteration, "env_steps": step} for iteration, step in enumerate((10, 20, 20, 20, 30), start=1)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run, state = make_run(tmp_path, schema), CheckpointState(run_id="run", iteration=3, env_steps=20)
    journal = MetricsLogger(run)
    journal.open(state)
    journal.close()
    assert [numbers["iteration"] for numbers in tracked_run(run, state).numbers_at_step] == [2, 3]


def test_learner_logs_a_line_about_its_progress_at_first_and_then_once_a_minute(
    tmp_path: Path, schema: Schema, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    now_s = [0.0]
    journal = MetricsLogger(make_run(tmp_path, schema), clock=lambda: now_s[0])
    journal.open(CheckpointState(run_id="run-id"))
    row: dict[str, Any] = {"episode_return_mean": None, "sps": None, "policy_version": 2, "env_steps": 100}
    for iteration in range(1, 8):
        journal.write({**row, "iteration": iteration})
        row |= {"episode_return_mean": 21.5, "sps": 1234.5}
        now_s[0] += LINE_INTERVAL_S / 5
    journal.close()
    assert caplog.messages == [
        "iteration 1, return -, - steps/s, version 2",
        "iteration 6, return 21.50, 1234 steps/s, version 2",
    ]
