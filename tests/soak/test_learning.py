"""The learning bars of `docs/learning.md`, by `minefleet eval` of the final checkpoint over 100 episodes."""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Fleet

pytestmark = pytest.mark.soak

Train = Callable[..., Fleet]
Evaluate = Callable[..., dict[str, Any]]
SEEDS = range(1, 6)


def final(train: Train, evaluate: Evaluate, preset: str, seed: int, *settings: str) -> dict[str, Any]:
    """Trains a preset to its end and evaluates what it ended with."""
    fleet = train(preset, f"seed={seed}", *settings)
    fleet.finish()
    return evaluate(fleet.directory, 100)


@pytest.mark.parametrize("seed", SEEDS)
def test_cartpole_balances(train: Train, evaluate: Evaluate, seed: int) -> None:
    assert final(train, evaluate, "cartpole", seed)["return_mean"] >= 475


@pytest.mark.parametrize("seed", SEEDS)
def test_recall_is_solved_with_memory(train: Train, evaluate: Evaluate, seed: int) -> None:
    assert final(train, evaluate, "recall", seed)["metrics"]["success"] >= 0.95


@pytest.mark.parametrize("seed", SEEDS)
def test_recall_is_not_solved_without_memory(train: Train, evaluate: Evaluate, seed: int) -> None:
    assert final(train, evaluate, "recall", seed, "policy.gru_size=0")["metrics"]["success"] <= 0.35


@pytest.mark.parametrize("seed", SEEDS)
def test_corridor_is_valued_as_its_closed_form(train: Train, evaluate: Evaluate, seed: int) -> None:
    value = final(train, evaluate, "corridor", seed)["value_mean"]
    assert value == pytest.approx(1 / (1 - 0.95), rel=0.05)


@pytest.mark.parametrize("seed", SEEDS)
def test_pendulum_swings_up(train: Train, evaluate: Evaluate, seed: int) -> None:
    assert final(train, evaluate, "pendulum", seed)["return_mean"] >= -250


def test_crafter_is_learned(train: Train, tmp_path: Path) -> None:
    returns = []
    for seed in (1, 2, 3):
        returns.append(
            train("crafter", f"seed={seed}", "stop.env_steps=300000", directory=tmp_path / str(seed)).finish()[
                "episode_return_mean"
            ]
        )
    assert statistics.median(returns) >= 4.0
