"""MLflow's store of files holds the run."""

from pathlib import Path

import pytest
from tests.minefleet_learner.trackers.conftest import MakeTracked

from minefleet_learner.trackers.mlflow_tracker import RUN_TAG, MlflowTracker

mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")


def test_a_resumed_run_goes_on_in_the_same_run_of_mlflow(
    tmp_path: Path, make_tracked: MakeTracked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    film = tmp_path / "version-3.mp4"
    film.write_bytes(b"video")
    for first in (1, 3):
        tracker = MlflowTracker()
        tracker.start(make_tracked(step=first))
        for step in (first, first + 1):
            tracker.log({"episode/return_mean": 10.0 * step, "tasks/dig: 3/episodes": 1.0}, step)
        tracker.log_video("video/dig: 3", film, "version 3", first)
        tracker.close()

    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("p").experiment_id])
    name, tag = run.data.tags["mlflow.runName"], run.data.tags[RUN_TAG]
    assert (name, tag, run.info.status) == ("n", "run-id", "FINISHED")
    history = client.get_metric_history(run.info.run_id, "episode/return_mean")
    assert [(point.step, point.value) for point in history] == [(step, 10.0 * step) for step in (1, 2, 3, 4)]
    assert run.data.metrics["tasks/dig_ 3/episodes"] == 1.0
    assert run.data.params["logger_config.project"] == "minefleet"
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {"config.yaml", "video"}
