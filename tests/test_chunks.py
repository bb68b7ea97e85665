"""Several steps per decision, from environments to advantages, and that they are learned from as such."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import chunked
from tests.chunked import CHUNK, DISCOUNT
from tests.conftest import Fleet
from tests.practice import practise

from minefleet.config import EnvConfig, PolicyConfig, TrainConfig

HERE = chunked.__file__
SETTINGS = (
    "env.id=",
    f"env.generator={HERE}:Clocked",
    f"env.wrappers.action_chunk={CHUNK}",
    f"trainer_name={HERE}:Checking",
    f"train_config.discount={DISCOUNT}",
    "train_config.num_iterations=3",
)


@pytest.mark.parametrize("kind", [("--serial",), pytest.param((), marks=pytest.mark.fleet)], ids=["serial", "fleet"])
def test_chunks_reach_the_learner_with_their_durations_and_discounted_rewards(
    train: Callable[..., Fleet], tmp_path: Path, kind: tuple[str, ...]
) -> None:
    train("cartpole", *kind, *SETTINGS).finish()
    counts = json.loads((tmp_path / "counts.json").read_text())
    assert set(counts) == {str(duration) for duration in range(1, CHUNK + 1)}
    assert 3 * 8 * 32 <= sum(counts.values()) < 3 * 9 * 32  # A lease is of whole chunks, and at most one too long.


@pytest.mark.parametrize(("discount", "least", "most"), [(0.7, 0.99, 1.05), (0.99, 5.3, 5.8)], ids=["myopic", "far"])
def test_a_policy_learns_the_option_that_the_discount_of_each_step_makes_the_best(
    discount: float, least: float, most: float
) -> None:
    """Discounted once per decision, or with rewards that are not discounted, the long option pays more for both."""
    train = TrainConfig(
        learning_rate=1e-2, batch_size_per_gpu=8, epochs_per_iteration=4, context_length=32, discount=discount
    )
    rewards = practise(EnvConfig(generator=f"{HERE}:Patience"), PolicyConfig(hidden_size=16), train, 40)
    assert least <= sum(rewards[-3:]) / 3 <= most
