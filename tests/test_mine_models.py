"""MineStudio's models train, through the real package, over the stand-in engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.conftest import Fleet
from tests.engine.prepared import Prepared
from tests.mine_models import OBSERVED, SIDE

from minefleet.core.schema import Schema
from minefleet.core.tree import flatten
from minefleet.runs.run_yaml import read_run

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
ITERATIONS, MORE = 20, 2


FROZEN = {"groot": {"frozen_encoder/00"}, "rocket3": {"frozen_encoder/00", "frozen_encoder/01"}}
"""Models whose backbone is frozen, and what is stored of it: it is called for one picture, and for two."""


def configuration(model: str, python: str, frozen_encoder: str = "") -> dict[str, Any]:
    return {
        "preset": "minestudio",
        "env": {
            "generator": f"{HERE}/engine/mine_tasks.py:env_generator",
            "kwargs": {"model": model},
            "python": python,
        },
        "policy": {
            "generator": f"{HERE}/mine_models.py:policy_generator",
            "kwargs": {"model": model},
            "frozen_encoder": frozen_encoder,
        },
        "rollout_config": {
            "fragment_length": 16,
            "worker_config": {"num_envs": 4, "envs_per_process": 2},
            "num_rollout_workers": 1,
        },
        "train_config": {
            "num_iterations": ITERATIONS,
            "batch_size_per_gpu": 2,
            "batches_per_iteration": 2,
            "gradient_accumulation": 1,
            "context_length": 16,
            "save_interval": 10,
            "record_video_interval": 10,
            "vf_warmup": 2,
        },
    }


Begin = Callable[..., Fleet]
"""Trains a model, by name, with a frozen encoder or none."""


@pytest.fixture
def begin(
    minestudio_engine: Prepared, train: Callable[..., Fleet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Begin:
    def start(model: str, frozen_encoder: str = "") -> Fleet:
        for name, value in minestudio_engine.variables.items():
            monkeypatch.setenv(name, value)
        path = tmp_path / "model.yaml"
        path.write_text(yaml.safe_dump(configuration(model, minestudio_engine.python, frozen_encoder)))
        return train(str(path))

    return start


def assert_trains_is_filmed_and_resumes(fleet: Fleet, train: Callable[..., Fleet]) -> None:
    fleet.finish()
    assert len(fleet.rows()) == ITERATIONS
    assert all(row["parity_logp"] < 1e-4 and row["parity_steps"] > 0 for row in fleet.rows())
    assert list(fleet.directory.rglob("*.mp4"))
    resumed = train("--resume", str(fleet.directory), f"train_config.num_iterations={ITERATIONS + MORE}")
    resumed.finish()
    assert [row["iteration"] for row in resumed.rows()] == [*range(1, ITERATIONS + MORE + 1)]


@pytest.mark.parametrize("model", list(OBSERVED))
def test_a_model_of_minestudio_trains_is_filmed_and_resumes(
    model: str, begin: Begin, train: Callable[..., Fleet], minestudio_engine: Prepared
) -> None:
    fleet = begin(model)
    assert_trains_is_filmed_and_resumes(fleet, train)
    run = read_run(fleet.directory)
    schema = Schema(obs=OBSERVED[model], action=run.schema.action)
    assert {key: (leaf.shape, leaf.kind) for key, leaf in flatten(run.schema.obs).items()} == {
        key: (leaf.shape, leaf.kind) for key, leaf in flatten(schema.obs).items()
    }
    assert run.schema.obs["image"].shape == (SIDE, SIDE, 3)
    assert minestudio_engine.engines() == []


@pytest.mark.parametrize("model", list(FROZEN))
def test_a_model_with_a_frozen_backbone_trains_without_pictures(
    model: str, begin: Begin, train: Callable[..., Fleet]
) -> None:
    fleet = begin(model, "backbone")
    assert_trains_is_filmed_and_resumes(fleet, train)
    run = read_run(fleet.directory)
    stored, shown = flatten(run.fragment_schema.obs), flatten(run.schema.obs)
    assert {path for path in stored if path not in shown} == FROZEN[model]
    assert {path for path in shown if path not in stored} == {path for path in shown if shown[path].is_pixels}
    refused = train("--resume", str(fleet.directory), "policy.frozen_encoder=", "train_config.num_iterations=30")
    assert "has stored other observations" in refused.process.communicate()[1]
    assert refused.process.returncode == 2
