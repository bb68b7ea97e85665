import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.role_process import wait_for
from tests.wandb_file import records

from minefleet.config import FleetConfig, LoggerConfig
from minefleet.core.errors import ConfigError
from minefleet.core.schema import Schema
from minefleet.runs.run import Run
from minefleet.v1 import episode_pb2
from minefleet_learner.metrics.loggers import JsonLines, MetricsLogger, flat_numbers, import_package, wandb_arguments


def read(path: Path) -> list[int]:
    return [json.loads(line)["iteration"] for line in path.read_text().splitlines()]


def make_run(directory: Path, schema: Schema, **logger: bool) -> Run:
    config = replace(FleetConfig(), logger_config=LoggerConfig(**logger))  # type: ignore[arg-type]
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


def test_a_row_is_there_as_soon_as_it_is_written_and_what_is_not_finite_is_null(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = JsonLines(path, after_iteration=0)
    lines.write({"iteration": 1, "loss": float("nan"), "inner": {"a": float("inf"), "b": 1.5}, "none": None})
    assert json.loads(path.read_text()) == {
        "iteration": 1,
        "loss": None,
        "inner": {"a": None, "b": 1.5},
        "none": None,
    }
    lines.close()


def test_only_finite_numbers_reach_the_dashboards() -> None:
    row = {"iteration": 1, "loss": float("nan"), "episode_metrics": {"a/b": 2.0}, "mean": None}
    assert flat_numbers(row) == {"iteration": 1, "episode_metrics/a/b": 2.0}


def test_evaluations_have_a_file_of_their_own(tmp_path: Path, schema: Schema) -> None:
    journal = MetricsLogger(make_run(tmp_path, schema))
    journal.write({"iteration": 0})
    journal.open("run", 0)
    journal.write({"iteration": 1})
    journal.write_evaluation({"iteration": 1, "episode_return": 3.0})
    journal.close()
    journal.close()
    assert read(tmp_path / "metrics.jsonl") == [1]
    assert read(tmp_path / "episodes.jsonl") == [1]


def test_a_missing_package_is_a_config_error_that_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r"logger_config.wandb=true .*minefleet\[wandb\]"):
        import_package("minefleet_no_such_module", "wandb")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_gets_the_numbers_over_env_steps(tmp_path: Path, schema: Schema) -> None:
    from tensorboard.backend.event_processing import event_accumulator as events_module

    journal = MetricsLogger(make_run(tmp_path, schema, tensorboard=True))
    journal.open("run", 0)
    journal.write({"iteration": 1, "env_steps": 640, "entropy": 1.25, "episode_return_mean": None})
    journal.close()
    events = events_module.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("entropy")] == [(640, 1.25)]
    assert "episode_return_mean" not in events.Tags()["scalars"]


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")


def logged(directory: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The run's record and the rows, as wandb wrote them, of all parts of one run."""
    paths = sorted(directory.glob("**/wandb/offline-run-*/run-run-id.wandb"))
    wait_for(lambda: all(any(record.HasField("exit") for record in records(path)) for path in paths))
    found = [record for path in paths for record in records(path)]
    (run_id,) = {record.run.run_id for record in found if record.HasField("run")}
    config = next(record.run.config for record in found if record.HasField("run"))
    rows = [record.history.item for record in found if record.HasField("history")]
    return (
        {"id": run_id, **{item.key: json.loads(item.value_json) for item in config.update}},
        [{"/".join(item.nested_key): json.loads(item.value_json) for item in row} for row in rows],
    )


@pytest.mark.usefixtures("offline")
def test_wandb_offline_holds_the_curve_and_a_resumed_run_continues_the_same_run(tmp_path: Path, schema: Schema) -> None:
    for first in (1, 3):
        run = make_run(tmp_path / str(first), schema, wandb=True)  # A folder of wandb's is named by the second.
        journal = MetricsLogger(run)
        journal.open("run-id", first - 1)
        for iteration in (first, first + 1):
            returns = None if iteration == 1 else 10.0 * iteration
            row = {"iteration": iteration, "env_steps": 640 * iteration, "episode_return_mean": returns}
            journal.write(row | {"loop_share": {"training": 0.5}})
        journal.close()
    told, rows = logged(tmp_path)
    assert told["id"] == "run-id"
    assert told["train_config"]["discount"] == run.config.train_config.discount
    assert [row["env_steps"] for row in rows] == [640, 1280, 1920, 2560]
    assert [row.get("episode_return_mean") for row in rows] == [None, 20.0, 30.0, 40.0]
    assert {row["loop_share/training"] for row in rows} == {0.5}


def test_wandb_is_told_what_the_configuration_says_for_it(tmp_path: Path, schema: Schema) -> None:
    run = make_run(tmp_path, schema)
    config = replace(run.config, logger_config=LoggerConfig(init={"entity": "us", "mode": "offline"}))
    (tmp_path / "whole_config.txt").write_text("# as I wrote it")
    told = wandb_arguments(replace(run, config=config), "run-id")
    assert (told["entity"], told["mode"], told["id"]) == ("us", "offline", "run-id")
    assert told["config"]["whole_config"] == "# as I wrote it"


@pytest.mark.usefixtures("offline")
def test_wandb_holds_the_video_of_an_episode_at_its_step_where_the_file_can_be_read(
    tmp_path: Path, schema: Schema, caplog: pytest.LogCaptureFixture
) -> None:
    film = tmp_path / "version-3-a-4.mp4"
    film.write_bytes(b"video")
    episode = episode_pb2.EpisodeRecord(policy_version=3, episode_return=2, task="dig")
    journal = MetricsLogger(make_run(tmp_path, schema, wandb=True))
    journal.open("run-id", 0)
    caplog.set_level("INFO")
    for episode.video.host, episode.video.path in (("here", str(film)), ("elsewhere", "/not/here.mp4")):
        journal.show(episode, 640)
    journal.close()
    (path,) = tmp_path.glob("wandb/offline-run-*-run-id/files/media/videos/**/*.mp4")
    assert path.read_bytes() == b"video"
    (row,) = logged(tmp_path)[1]
    assert row["env_steps"] == 640
    assert row["video/dig/caption"] == "version 3, return 2.00 dig"
    assert str(path).endswith(row["video/dig/path"])
    assert [record.message for record in caplog.records if "was filmed" in record.message] == [
        f"an episode of version 3 was filmed: {film}",
        "an episode of version 3 was filmed: /not/here.mp4 on elsewhere, which this learner cannot read",
    ]


@pytest.mark.parametrize(("host", "mode"), [("api.wandb.ai", "online"), ("example.org", "offline")])
def test_wandb_is_online_where_a_key_was_left_by_its_login(
    tmp_path: Path, schema: Schema, monkeypatch: pytest.MonkeyPatch, host: str, mode: str
) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert wandb_arguments(make_run(tmp_path, schema), "run-id")["mode"] == "offline"
    file = tmp_path / ".netrc"
    file.write_text(f"machine {host} login user password key\n")
    file.chmod(0o600)
    assert wandb_arguments(make_run(tmp_path, schema), "run-id")["mode"] == mode
