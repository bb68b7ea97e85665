"""The wrappers themselves: Gymnasium's where it has them. Images may lie anywhere in a Dict or Tuple observation."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation, TimeLimit, TransformObservation

from minefleet_env.discounted_step_rewards import STEP_REWARDS
from minefleet_env.errors import EnvError, RefusedError
from minefleet_env.space_conversion import join
from minefleet_env.wrappers.action_mask_validation import MASK
from minefleet_env.wrappers.image_transforms import grey, resizer

Env = gymnasium.Env[Any, Any]
Space = gymnasium.Space[Any]
SOLE_KEY = "obs"
"""Key of an observation that was none of a Dict before the mask came beside it."""


def apply(bare: Any, wrappers: Mapping[str, Any]) -> Env:
    """Applies what is wanted, in the order of `wrapping`."""
    if not isinstance(bare, gymnasium.Env):
        raise RefusedError(f"env.wrappers wrap a gymnasium.Env, and this is a {type(bare).__name__}")
    env: Env = bare
    if wrappers["time_limit"]:
        env = TimeLimit(env, wrappers["time_limit"])
    if wrappers["frame_skip"] > 1:
        env = MultiStep(env, wrappers["frame_skip"])
    if wrappers["resize"]:
        env = _each_image(env, resizer(*wrappers["resize"]), "resize")
    if wrappers["grey"]:
        env = _each_image(env, grey, "grey")
    if wrappers["frame_stack"] > 1:
        env = _stacked(env, wrappers["frame_stack"])
    if wrappers["action_mask"]:
        env = MaskFromInfo(env, wrappers["action_mask"])
    if wrappers["action_chunk"] > 1:
        env = MultiStep(env, wrappers["action_chunk"], _chunk_space(env, wrappers["action_chunk"]))
    return env


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
            part = _map(partial(_action_at, index), self.env.action_space, action) if self._is_chunk else action
            obs, reward, terminated, truncated, info = self.env.step(part)
            total += float(reward)
            lists_rewards |= STEP_REWARDS in info
            rewards.extend(info.get(STEP_REWARDS, [float(reward)]))
            if terminated or truncated or info.get("error"):
                break
        return obs, total, terminated, truncated, {**info, STEP_REWARDS: rewards} if lists_rewards else info


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


def _each_image(env: Env, function: Callable[[Any], Any], key: str) -> Env:
    """Applies a function to every image of the observation, and to the space by way of black ones."""
    found = []

    def space_of(space: Any, _: Any, path: str) -> Any:
        if not _is_image(space):
            return space
        found.append(path)
        return spaces.Box(0, 255, function(np.zeros(space.shape, np.uint8)).shape, np.uint8)

    def value_of(space: Any, value: Any, path: str) -> Any:
        return function(_checked(space, value, path)) if _is_image(space) else value

    space = env.observation_space
    new_space = _map(space_of, space, space)
    if not found:
        raise RefusedError(f"env.wrappers.{key}: {space} has no images [height, width, channels] of bytes")
    return TransformObservation(env, partial(_map, value_of, space), new_space)


def _is_image(space: Space) -> bool:
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3


def _checked(space: Any, value: Any, path: str) -> Any:
    """Refuses an image that is none of its space: resized, it would look right."""
    image = np.asarray(value)
    if image.shape != space.shape or image.dtype != space.dtype:
        raise EnvError(f"the image {path!r} must be {space.dtype} {space.shape}, got {image.dtype} {image.shape}")
    return image


def _stacked(env: Env, count: int) -> Env:
    """Stacks observations, as Gymnasium does, but boxes along their last axis; of the rest the newest stays."""

    def is_folded(space: Any, path: str) -> bool:
        return isinstance(space, spaces.Box) and path != MASK and not path.startswith(f"{MASK}/")

    def space_of(space: Any, _: Any, path: str) -> Any:
        if not is_folded(space, path):
            return space
        low, high = (np.concatenate(count * [np.atleast_1d(bound)], axis=-1) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=space.dtype)

    def value_of(space: Any, value: Any, path: str) -> Any:
        if not is_folded(space, path):
            return value[-1]
        return np.concatenate([np.atleast_1d(one) for one in value], axis=-1)

    space = env.observation_space
    new_space = _map(space_of, space, space)
    # FrameStackObservation keeps what it is shown, and many environments fill one array anew at each step.
    copied = TransformObservation(env, copy.deepcopy, space)
    return TransformObservation(FrameStackObservation(copied, count), partial(_map, value_of, space), new_space)


def _map(function: Callable[[Any, Any, str], Any], space: Any, value: Any, path: str = "") -> Any:
    """Applies a function to the leaves of a space, or of a value with its structure; keeps Dicts and Tuples as such.

    Args:
        function: From a leaf's space, its value and its path.
        space: The space.
        value: A value with its structure, or the space itself.
        path: Where the space lies.
    """
    if isinstance(space, spaces.Dict):
        made = {key: _map(function, child, value[key], join(path, str(key))) for key, child in space.items()}
        return spaces.Dict(made) if value is space else made
    if isinstance(space, spaces.Tuple):
        children = [_map(function, child, value[index], join(path, str(index))) for index, child in enumerate(space)]
        return spaces.Tuple(children) if value is space else tuple(children)
    return function(space, value, path)


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

    chunk_space: Space = _map(space_of, env.action_space, env.action_space)
    return chunk_space


def _action_at(index: int, space: Any, chunk: Any, _: str) -> Any:
    """An action of a chunk, at one leaf."""
    return int(chunk[index]) if isinstance(space, spaces.Discrete) else np.asarray(chunk[index])


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
