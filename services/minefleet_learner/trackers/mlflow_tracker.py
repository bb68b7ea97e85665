"""Logs to MLflow, where its own variables say: `MLFLOW_TRACKING_URI` and those for users and passwords."""

import re
import time
from collections.abc import Mapping
from pathlib import Path

from minefleet_learner.trackers.tracker import TrackedRun, Tracker

RUN_TAG = "minefleet.run_id"
MAX_METRICS, MAX_PARAMS = 1000, 100
"""In one request: MLflow's limits."""
MAX_PARAM_CHARACTERS = 500
FORBIDDEN = re.compile(r"[^\w\-. /]")
"""Characters that MLflow refuses in the name of a metric, though a task may have them."""


class MlflowTracker(Tracker):
    """A run of the experiment `logger_config.project`, found again by its tag when it is resumed."""

    def start(self, run: TrackedRun) -> None:
        """Goes on with the run that has this run's tag, or creates one, with the configuration as its parameters."""
        from mlflow import MlflowClient

        self._client = MlflowClient()
        found = self._client.get_experiment_by_name(run.project)
        experiment = found.experiment_id if found else self._client.create_experiment(run.project)
        known = self._client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{run.run_id}'")
        self._id = known[0].info.run_id if known else self._create(experiment, run)
        self._client.update_run(self._id, status="RUNNING")
        self._client.log_dict(self._id, dict(run.config), "config.yaml")

    def _create(self, experiment: str, run: TrackedRun) -> str:
        from mlflow.entities import Param

        made: str = self._client.create_run(experiment, run_name=run.name, tags={RUN_TAG: run.run_id}).info.run_id
        params = [Param(name, value[:MAX_PARAM_CHARACTERS]) for name, value in _flat(run.config).items()]
        for first in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(made, params=params[first : first + MAX_PARAMS])
        return made

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Sends the numbers, and waits for the answer."""
        from mlflow.entities import Metric

        now_ms = round(1000 * time.time())
        metrics = [Metric(FORBIDDEN.sub("_", name), value, now_ms, step) for name, value in numbers.items()]
        for first in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(self._id, metrics[first : first + MAX_METRICS])

    def log_video(self, name: str, path: Path, caption: str, step: int) -> None:
        """Stores a video among the run's artifacts."""
        self._client.log_artifact(self._id, str(path), FORBIDDEN.sub("_", name))

    def close(self) -> None:
        """Marks the run as finished; a resumed one is running again."""
        self._client.set_terminated(self._id)


def _flat(config: Mapping[str, object], section: str = "") -> dict[str, str]:
    """The keys of a configuration with dots, and their values as text."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{section}{key}.")
        else:
            flat[FORBIDDEN.sub("_", f"{section}{key}")] = str(value)
    return flat
