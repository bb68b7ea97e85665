"""Crafter (Hafner 2021, https://arxiv.org/abs/2109.06780) as a Gymnasium environment, with worlds made ahead.

    played game ◀── swapped at reset ──▶ spare game ◀── one thread makes its next world

A world takes as long to make as dozens of steps, so each environment has two games: while one is played, a thread of
its own makes the next world in the other. There is at most one world ahead; `reset` waits for it and asks for the next.
"""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import crafter
import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from minefleet.core.crafter_score import ACHIEVEMENTS, METRICS

Frame = NDArray[np.uint8]


class Crafter(gymnasium.Env[Frame, Any]):
    """Crafter, with termination (death) and truncation (`length` steps) kept apart.

    The worlds after `reset(seed=s)` are those of `crafter.Env(seed=s)`, in its order; each is used once.

    obs     [size, size, 3] uint8
    action  one of 17
    metrics `achievement/<name>`: 1 if the episode unlocked it, else 0, for the 22 achievements
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012  # Gymnasium's.

    def __init__(self, size: int = 64, length: int = 10_000, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._game = _Game(size=(size, size), length=length)
        self._spare = _Game(size=(size, size), length=length)
        self.observation_space = spaces.Box(0, 255, (size, size, 3), np.uint8)
        self.action_space = spaces.Discrete(len(self._game.action_names))
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="crafter-world")
        self._world: Future[Frame] | None = None
        self._seed = 0
        self._episode = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Frame, dict[str, Any]]:
        """Shows the next world, or the first one of `seed`."""
        super().reset(seed=seed, options=options)
        if seed is not None or self._world is None:
            self._seed = int(self.np_random.integers(2**31)) if seed is None else seed
            self._episode = 0
            self._world = self._next_world()
        obs = self._world.result()
        self._game, self._spare = self._spare, self._game
        self._world = self._next_world()
        return obs, {}

    def step(self, action: Any) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        """Plays one step."""
        obs, reward, done, info = self._game.step(int(action))
        terminated = info["discount"] == 0
        if done:
            info["metrics"] = _unlocked(info["achievements"])
        return obs, float(reward), terminated, done and not terminated, info

    def render(self) -> Any:
        """Returns the current frame."""
        return self._game.render()

    def close(self) -> None:
        """Ends the thread, after the world it is making."""
        self._maker.shutdown(cancel_futures=True)

    def _next_world(self) -> Future[Frame]:
        """Makes the spare game generate the next world. One thread makes them in order, so the last one stands."""
        self._episode += 1
        return self._maker.submit(self._spare.begin, self._seed, self._episode)


def _unlocked(counts: Mapping[str, int]) -> dict[str, float]:
    return {metric: float(counts[name] > 0) for metric, name in zip(METRICS, ACHIEVEMENTS, strict=True)}


class _Game(crafter.Env):  # type: ignore[misc]  # crafter is untyped.
    """Crafter's own environment, with a given world."""

    def begin(self, seed: int, episode: int) -> Frame:
        """Makes the world that `crafter.Env(seed=seed)` makes at its reset number `episode`, which count from 1."""
        self._seed = seed
        self._episode = episode - 1
        obs: Frame = self.reset()
        return obs

    def _balance_chunk(self, chunk: Any, objs: Any) -> None:
        # Crafter draws from a set, whose order follows addresses; in a fixed order, equal actions give equal episodes.
        super()._balance_chunk(chunk, sorted(objs, key=lambda thing: tuple(thing.pos)))
