"""Applies a function to the leaves of Gymnasium spaces and of their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium import spaces

from minefleet_env.space_conversion import join

Env = gymnasium.Env[Any, Any]
Space = gymnasium.Space[Any]


def map_leaves(function: Callable[[Any, Any, str], Any], space: Any, value: Any, path: str = "") -> Any:
    """Applies a function to the leaves of a space, or of a value with its structure; keeps Dicts and Tuples as such.

    Args:
        function: From a leaf's space, its value and its path.
        space: The space.
        value: A value with its structure, or the space itself.
        path: Where the space lies.
    """
    if isinstance(space, spaces.Dict):
        made = {key: map_leaves(function, child, value[key], join(path, str(key))) for key, child in space.items()}
        return spaces.Dict(made) if value is space else made
    if isinstance(space, spaces.Tuple):
        children = [
            map_leaves(function, child, value[index], join(path, str(index))) for index, child in enumerate(space)
        ]
        return spaces.Tuple(children) if value is space else tuple(children)
    return function(space, value, path)
