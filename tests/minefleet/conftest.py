"""A run directory without a run in it."""

from pathlib import Path

import pytest

from minefleet.config import EnvConfig, FleetConfig
from minefleet.core.schema import Schema
from minefleet.runs.run_yaml import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    config = FleetConfig(env=EnvConfig(id="CartPole-v1"))
    made = Run(directory=tmp_path, config=config, schema=Schema(obs={}, action={}), architecture="abc")
    made.write()
    return made
