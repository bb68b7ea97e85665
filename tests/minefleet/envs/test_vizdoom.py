"""Rewards of Health Gathering over a stand-in for VizDoom's own environment."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from minefleet.envs.vizdoom import HealthGathering

LIVED = 0.04
"""Reward of four ticks."""


class Game(gymnasium.Env[Any, Any]):
    """Shows the healths that it was given, one after the other; the last is shown after the player's death."""

    observation_space = Dict(
        {"screen": Box(0, 255, (120, 160, 3), np.uint8), "gamevariables": Box(-np.inf, np.inf, (1,), np.float32)}
    )
    action_space = Discrete(4)

    def __init__(self, healths: list[float]) -> None:
        self._healths = healths

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self._step += 1
        return self._look(), LIVED, self._step == len(self._healths) - 1, False, {}

    def _look(self) -> Any:
        health = np.array([self._healths[self._step]], np.float32)
        return {"screen": np.full((120, 160, 3), self._step, np.uint8), "gamevariables": health}


def test_health_gathering_pays_for_each_medkit_and_for_the_time_lived(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def make(id: str, **kwargs: Any) -> Game:  # noqa: A002  # As Gymnasium calls it.
        asked.update(kwargs, id=id)
        return Game([100, 92, 100, 70, 95, 0])

    monkeypatch.setattr(gymnasium, "make", make)
    env = HealthGathering()
    for _ in range(2):  # What an episode ended with is not what the next one begins with.
        seen, _ = env.reset(seed=0)
        assert env.observation_space.contains(seen)
        steps = [env.step(action % 4) for action in range(5)]
        assert [reward for _, reward, *_ in steps] == pytest.approx([LIVED, 1 + LIVED, LIVED, 1 + LIVED, LIVED])
        assert [frame[0, 0, 0] for frame, *_ in steps] == [1, 2, 3, 4, 5]
        assert [terminated for _, _, terminated, *_ in steps] == [False] * 4 + [True]
    assert (asked["frame_skip"], asked["living_reward"], asked["death_penalty"]) == (4, 0.01, 0)
