"""A tiny VPT learns to aim, over the real MineStudio and the stand-in engine: from pixels, and from nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Fleet
from tests.engine.prepared import Prepared

pytestmark = pytest.mark.soak

TASK = str(Path(__file__).with_name("cow.yaml"))
EPISODES = 200


def returns(
    train: Callable[..., Fleet], evaluate: Callable[..., dict[str, Any]], python: str, *settings: str
) -> tuple[float, float]:
    """Mean returns of what a run ended with, and of a policy that acts at random in the same task."""
    fleet = train(TASK, f"env.python={python}", "seed=1", *settings)
    fleet.finish()
    random = evaluate(fleet.directory, EPISODES, "--random")
    return evaluate(fleet.directory, EPISODES, "--sample")["return_mean"], random["return_mean"]


def test_a_tiny_vpt_learns_to_hit_a_cow(
    train: Callable[..., Fleet], evaluate: Callable[..., dict[str, Any]], minestudio_engine: Prepared, monkeypatch: Any
) -> None:
    for name, value in minestudio_engine.variables.items():
        monkeypatch.setenv(name, value)
    trained, random = returns(train, evaluate, minestudio_engine.python)
    assert trained >= 3 * random > 0


def test_without_pixels_there_is_nothing_to_learn(
    train: Callable[..., Fleet], evaluate: Callable[..., dict[str, Any]], minestudio_engine: Prepared, monkeypatch: Any
) -> None:
    for name, value in minestudio_engine.variables.items():
        monkeypatch.setenv(name, value)
    trained, random = returns(train, evaluate, minestudio_engine.python, "env.kwargs.is_blank=true")
    assert trained < 1.5 * random
