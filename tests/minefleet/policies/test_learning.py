"""Masks, texts and normalisation serve learning, shown in a few seconds each."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from tests.practice import practise

from minefleet.config import EnvConfig, PolicyConfig, TrainConfig, WrappersConfig

TRAIN = TrainConfig(learning_rate=3e-3, batch_size_per_gpu=8, epochs_per_iteration=4, context_length=32, discount=0.5)
POLICY = PolicyConfig(hidden_size=32, hidden_layers=1)
HERE = Path(__file__)
LAST = 5
MOVES = 12


class Legal(gymnasium.Env[Any, Any]):
    """Of 12 moves 3 are legal, drawn anew each step; the highest of them pays 1. An illegal one is an error."""

    observation_space = spaces.Box(0, 1, (MOVES,), np.float32)
    action_space = spaces.Discrete(MOVES)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.look()

    def look(self) -> tuple[Any, dict[str, Any]]:
        self.legal = np.zeros(MOVES, np.int8)
        self.legal[self.np_random.permutation(MOVES)[:3]] = 1
        return self.legal.astype(np.float32), {"legal": self.legal}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.legal[action], f"{action} is illegal"
        reward = float(action == np.flatnonzero(self.legal)[-1])
        obs, info = self.look()
        return obs, reward, False, False, info


class Told(gymnasium.Env[Any, Any]):
    """The instruction says which of two actions pays."""

    observation_space = spaces.Dict({"instruction": spaces.Text(24), "x": spaces.Box(-1, 1, (2,), np.float32)})
    action_space = spaces.Discrete(2)
    instructions = ("chop the nearest tree", "dig down")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.look(), {}

    def look(self) -> dict[str, Any]:
        self.wanted = int(self.np_random.integers(2))
        return {"instruction": self.instructions[self.wanted], "x": self.np_random.uniform(-1, 1, 2).astype("float32")}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.wanted)
        return self.look(), reward, False, False, {}


class Large(gymnasium.Env[Any, Any]):
    """A number around a million says which of two actions pays: whether it is above."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.look(), {}

    def look(self) -> Any:
        self.wanted = int(self.np_random.integers(2))
        offset = self.np_random.uniform(100, 1000) * (1 if self.wanted else -1)
        return np.array([1e6 + offset], np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.wanted)
        return self.look(), reward, False, False, {}


def learned(name: str, policy: PolicyConfig = POLICY, iterations: int = 40, **wrappers: Any) -> float:
    env = EnvConfig(generator=f"{HERE}:{name}", wrappers=WrappersConfig(**wrappers))
    return float(np.mean(practise(env, policy, TRAIN, iterations)[-LAST:]))


def test_policy_with_an_action_mask_plays_no_illegal_move_and_learns_the_best_legal_one() -> None:
    assert learned("Legal", action_mask="legal") > 0.8


def test_policy_without_an_action_mask_fails_at_its_first_illegal_move() -> None:
    with pytest.raises(AssertionError, match="is illegal"):
        learned("Legal", iterations=1)


def test_an_instruction_that_decides_the_right_action_is_understood() -> None:
    assert learned("Told", iterations=30) > 0.95


@pytest.mark.parametrize(("normalize_obs", "least", "most"), [(True, 0.95, 1.0), (False, 0.0, 0.7)])
def test_observations_far_from_zero_are_learned_from_only_when_they_are_normalised(
    normalize_obs: bool, least: float, most: float
) -> None:
    policy = PolicyConfig(hidden_size=32, hidden_layers=1, normalize_obs=normalize_obs)
    assert least <= learned("Large", policy) <= most
