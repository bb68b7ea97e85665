"""Chains the wrappers that are wanted: Gymnasium's where it has them, ours elsewhere.

Images may lie anywhere in a Dict or Tuple observation.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation, TimeLimit, TransformObservation

from minefleet_env.errors import EnvError, RefusedError
from minefleet_env.wrappers.action_mask_rows import MASK
from minefleet_env.wrappers.action_mask_wrapper import MaskFromInfo
from minefleet_env.wrappers.image_transforms import grey, resizer
from minefleet_env.wrappers.multi_step_wrapper import MultiStep, in_chunks
from minefleet_env.wrappers.space_map import Env, Space, map_leaves


def apply(bare: Any, wrappers: Mapping[str, Any]) -> Env:
    """Applies what is wanted, in the order that `wrap` draws."""
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
        env = in_chunks(env, wrappers["action_chunk"])
    return env


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
    new_space = map_leaves(space_of, space, space)
    if not found:
        raise RefusedError(f"env.wrappers.{key}: {space} has no images [height, width, channels] of bytes")
    return TransformObservation(env, partial(map_leaves, value_of, space), new_space)


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
    new_space = map_leaves(space_of, space, space)
    # FrameStackObservation keeps what it is shown, and many environments fill one array anew at each step.
    copied = TransformObservation(env, copy.deepcopy, space)
    return TransformObservation(FrameStackObservation(copied, count), partial(map_leaves, value_of, space), new_space)
