from pathlib import Path

import pytest

from minefleet.config import EnvConfig, FleetConfig, ServicesConfig
from minefleet.core.schema import Leaf, Schema
from minefleet.runs.run_yaml import Run
from minefleet.v1 import status_service_pb2
from minefleet_runtime.role_context import RoleContext


@pytest.fixture
def run(tmp_path: Path) -> Run:
    schema = Schema(
        obs=Leaf(kind="box", shape=(4,), dtype="float32"),
        action=Leaf(kind="discrete", shape=(), dtype="int64", categories=(2,)),
    )
    config = FleetConfig(env=EnvConfig(id="CartPole-v1"), services=ServicesConfig(drain_s=5.0))
    return Run(directory=tmp_path, config=config, schema=schema, architecture="abc")


@pytest.fixture
def context(run: Run) -> RoleContext:
    return RoleContext(run=run, role=status_service_pb2.ROLE_REPLAY, name="replay")
