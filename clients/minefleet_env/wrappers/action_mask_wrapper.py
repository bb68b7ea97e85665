"""The mask of allowed actions comes out of `info` into the observation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from minefleet_env.errors import EnvError, RefusedError
from minefleet_env.wrappers.action_mask_rows import MASK
from minefleet_env.wrappers.space_map import Env, Space

SOLE_KEY = "obs"
"""Key of an observation that was none of a Dict before the mask came beside it."""


class MaskFromInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Moves the mask of allowed actions from `info` into the observation, as `action_mask`."""

    def __init__(self, env: Env, key: str) -> None:
        super().__init__(env)
        self._key = key
        inner = env.observation_space
        self._is_dict = isinstance(inner, spaces.Dict)
        if isinstance(inner, spaces.Dict) and MASK in inner.spaces:
            raise RefusedError(f"env.wrappers.action_mask: the observation has an {MASK!r} already")
        mask_space = _mask_space(env.action_space)
        if mask_space is None:
            raise RefusedError(f"env.wrappers.action_mask: {env.action_space} has no categories to mask")
        self.observation_space = spaces.Dict({**self._named(inner), MASK: mask_space})

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Resets and adds the mask."""
        obs, info = self.env.reset(**kwargs)
        return self._with_mask(obs, info, is_over=False), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Steps and adds the mask; where the episode is over and there is none, everything is allowed."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(obs, info, is_over=terminated or truncated), reward, terminated, truncated, info

    def _with_mask(self, obs: Any, info: Mapping[str, Any], *, is_over: bool) -> dict[str, Any]:
        mask = info.get(self._key)
        if mask is None and not is_over and not info.get("error"):
            raise EnvError(f"env.wrappers.action_mask: info lacks {self._key!r}; it has {sorted(map(str, info))}")
        return {**self._named(obs), MASK: _mask(self.env.action_space, mask)}

    def _named(self, tree: Any) -> dict[str, Any]:
        return dict(tree.items()) if self._is_dict else {SOLE_KEY: tree}


def _mask_space(action: Space) -> Space | None:
    """The space of a mask for an action space; None where there is nothing to mask."""
    if isinstance(action, (spaces.Dict, spaces.Tuple)):
        masks = {str(key): _mask_space(child) for key, child in _children(action)}
        found = {key: mask for key, mask in masks.items() if mask is not None}
        return spaces.Dict(found) if found else None
    count = _categories(action)
    return spaces.Box(0, 1, (count,), np.int8) if count else None


def _mask(action: Space, given: Any) -> Any:
    """A mask as its space wants it; `given` has the structure of the action, or is None where all is allowed."""
    if isinstance(action, (spaces.Dict, spaces.Tuple)):
        masked = [(key, child) for key, child in _children(action) if _mask_space(child) is not None]
        return {str(key): _mask(child, None if given is None else given[key]) for key, child in masked}
    if given is None:
        return np.ones(_categories(action), np.int8)
    return (np.hstack(given) != 0).astype(np.int8)


def _children(action: Any) -> list[tuple[Any, Any]]:
    return list(action.items()) if isinstance(action, spaces.Dict) else list(enumerate(action))


def _categories(action: Any) -> int:
    """The number of elements in a leaf's mask."""
    if isinstance(action, spaces.Discrete):
        return int(action.n)
    if isinstance(action, spaces.MultiDiscrete):
        return int(action.nvec.sum())
    return 2 * int(np.prod(action.shape)) if isinstance(action, spaces.MultiBinary) else 0
