"""Frame skip and action chunks: several steps of the environment per decision."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from minefleet_env.discounted_step_rewards import STEP_REWARDS
from minefleet_env.errors import RefusedError
from minefleet_env.wrappers.action_mask_rows import MASK
from minefleet_env.wrappers.space_map import Env, Space, map_leaves


class MultiStep(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Plays several steps per decision; stops where the episode ends or the environment says it is broken.

    Without a `chunk_space` one action is repeated. An action of that space has one action per step, and the rewards are
    listed in `info`, so that each is discounted by itself.

    Gymnasium's `MaxAndSkipObservation` shows the maximum of two frames, which undoes the flicker of Atari games and
    blurs every other world.
    """

    def __init__(self, env: Env, steps: int, chunk_space: Space | None = None) -> None:
        super().__init__(env)
        self._steps = steps
        self._is_chunk = chunk_space is not None
        if chunk_space is not None:
            self.action_space = chunk_space

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The last observation and info, and the sum of the rewards."""
        total, lists_rewards = 0.0, self._is_chunk
        rewards: list[float] = []
        for index in range(self._steps):
            part = map_leaves(partial(_action_at, index), self.env.action_space, action) if self._is_chunk else action
            obs, reward, terminated, truncated, info = self.env.step(part)
            total += float(reward)
            lists_rewards |= STEP_REWARDS in info
            rewards.extend(info.get(STEP_REWARDS, [float(reward)]))
            if terminated or truncated or info.get("error"):
                break
        return obs, total, terminated, truncated, {**info, STEP_REWARDS: rewards} if lists_rewards else info


def in_chunks(env: Env, count: int) -> MultiStep:
    """Wraps an environment so that an action is so many actions."""
    return MultiStep(env, count, _chunk_space(env, count))


def _chunk_space(env: Env, count: int) -> Space:
    """The space of so many actions: along a new first axis of each leaf."""
    if isinstance(env.observation_space, spaces.Dict) and MASK in env.observation_space.spaces:
        raise RefusedError(f"env.wrappers.action_chunk: {MASK!r} says what is allowed next, and not what after that")

    def space_of(space: Any, _: Any, path: str) -> Any:
        if isinstance(space, spaces.Box):
            return spaces.Box(np.stack(count * [space.low]), np.stack(count * [space.high]), dtype=space.dtype)
        if isinstance(space, spaces.MultiBinary):
            return spaces.MultiBinary((count, *space.shape))
        if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            categories = space.nvec if isinstance(space, spaces.MultiDiscrete) else space.n
            return spaces.MultiDiscrete(np.stack(count * [categories]), start=np.stack(count * [space.start]))
        raise RefusedError(f"env.wrappers.action_chunk: the action {path!r} is a {type(space).__name__} space")

    chunk_space: Space = map_leaves(space_of, env.action_space, env.action_space)
    return chunk_space


def _action_at(index: int, space: Any, chunk: Any, _: str) -> Any:
    """An action of a chunk, at one leaf."""
    return int(chunk[index]) if isinstance(space, spaces.Discrete) else np.asarray(chunk[index])
