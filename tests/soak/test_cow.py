"""A tiny VPT learns to aim, over the real MineStudio and the stand-in engine: from pixels, and from nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Fleet
from tests.engine.prepared import Prepared

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

Train = Callable[..., Fleet]
Evaluate = Callable[..., dict[str, Any]]
TASK = str(Path(__file__).with_name("cow.yaml"))
EPISODES = 200


@pytest.fixture
def hunt(
    minestudio_engine: Prepared, train: Train, evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[float, float]]:
    """Trains; returns the mean returns of the last policy and of a fresh one, both drawing their actions."""
    for variable, value in minestudio_engine.variables.items():
        monkeypatch.setenv(variable, value)

    def run(*settings: str) -> tuple[float, float]:
        fleet = train(TASK, f"env.python={minestudio_engine.python}", "seed=1", *settings)
        fleet.finish()
        last, fresh = (evaluate(fleet.directory, EPISODES, how) for how in ("--sample", "--random"))
        return last["return_mean"], fresh["return_mean"]

    return run


def test_tiny_vpt_learns_to_hit_a_cow(hunt: Callable[..., tuple[float, float]]) -> None:
    trained, random = hunt()
    assert trained >= 3 * random > 0


def test_tiny_vpt_learns_nothing_from_black_frames(hunt: Callable[..., tuple[float, float]]) -> None:
    trained, random = hunt("env.kwargs.is_blank=true")
    assert trained < 1.5 * random
