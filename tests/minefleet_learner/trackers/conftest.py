from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minefleet.config import FleetConfig, LoggerConfig
from minefleet.runs.run_yaml import to_dict
from minefleet_learner.trackers import TrackedRun

MakeTracked = Callable[..., TrackedRun]


@pytest.fixture
def make_tracked(tmp_path: Path) -> MakeTracked:
    def make(
        step: int = 0, directory: Path = tmp_path, at_step: Sequence[Mapping[str, float]] = (), **logger: Any
    ) -> TrackedRun:
        config = replace(FleetConfig(), logger_config=LoggerConfig(**logger))
        return TrackedRun(
            run_id="run-id",
            name="n",
            project="p",
            directory=directory,
            config=to_dict(config),
            step=step,
            numbers_at_step=at_step,
        )

    return make
