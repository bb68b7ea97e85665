"""Gymnasium's spaces as a `Schema`, and values between the two.

A space becomes a tree of `Leaf`: Dict keeps its keys, Tuple becomes a dict with keys "0", "1", .... Categories count
from 0 on our side, whatever the space's `start`; float64 becomes float32.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from minefleet.errors import ConfigError
from minefleet.schema import Leaf, Schema
from minefleet.tree import Tree, flatten, join

Array = NDArray[Any]
Space = gymnasium.Space[Any]
SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, Text (shown, not taken), Dict and Tuple"


def schema_of(env: gymnasium.Env[Any, Any]) -> Schema:
    """Returns the schema of an environment's observations and actions.

    Raises:
        ConfigError: If a space, or a key of a Dict, has no counterpart in a schema; names the leaf.
    """
    return Schema(obs=_tree(env.observation_space, "obs"), action=_tree(env.action_space, "action"))


def to_env_action(space: Space, tree: Tree) -> Any:
    """Turns one step's action arrays into what `env.step` takes, without keeping a view of them.

    Boxes are clipped to the space's bounds, since a Gaussian policy knows none.
    """
    match space:
        case spaces.Dict():
            return {key: to_env_action(child, tree[key]) for key, child in space.items()}
        case spaces.Tuple():
            return tuple(to_env_action(child, tree[str(index)]) for index, child in enumerate(space))
        case spaces.Discrete():
            return int(tree) + int(space.start)
        case spaces.MultiDiscrete():
            return (tree.reshape(space.nvec.shape) + space.start).astype(space.dtype)
        case spaces.MultiBinary():
            return tree.reshape(space.shape).astype(space.dtype)
        case _:
            return _clipped(space, tree)


def from_env_obs(space: Space, obs: Any) -> Tree:
    """Turns an observation into arrays with the structure of the schema. Shapes, dtypes and ranges are not checked."""
    match space:
        case spaces.Dict():
            return {key: from_env_obs(child, obs[key]) for key, child in space.items()}
        case spaces.Tuple():
            return {str(index): from_env_obs(child, obs[index]) for index, child in enumerate(space)}
        case spaces.Discrete():
            return np.asarray(obs) - space.start
        case spaces.MultiDiscrete():
            return (np.asarray(obs) - space.start).reshape(-1)
        case spaces.MultiBinary():
            return np.asarray(obs).reshape(-1)
        case _:
            return _bytes(space, obs) if isinstance(space, spaces.Text) else np.asarray(obs)


def _clipped(space: Space, value: Array) -> Array:
    low, high = space.low, space.high  # type: ignore[attr-defined]  # A Box: schemas hold no other space.
    return np.asarray(np.clip(value.astype(space.dtype), low, high))


def _tree(space: Space, path: str) -> Tree:
    match space:
        case spaces.Dict():
            children = {_checked(key, path): _tree(child, join(path, str(key))) for key, child in space.items()}
        case spaces.Tuple():
            children = {str(index): _tree(child, join(path, str(index))) for index, child in enumerate(space)}
        case _:
            return _leaf(space, path)
    if not flatten(children):
        raise ConfigError(f"{path} is an empty {type(space).__name__}")
    return children


def _checked(key: object, path: str) -> str:
    if not isinstance(key, str) or not key or "/" in key:
        raise ConfigError(f"{path} has the key {key!r}; keys must be non-empty strings without '/'")
    return key


def _leaf(space: Space, path: str) -> Leaf:
    match space:
        case spaces.Box():
            return _box(space)
        case spaces.Discrete():
            return Leaf(kind="discrete", shape=(), dtype="int64", categories=(int(space.n),))
        case spaces.MultiDiscrete():
            return _multi_discrete(tuple(int(n) for n in space.nvec.flat))
        case spaces.MultiBinary():
            return _multi_discrete((2,) * int(np.prod(space.shape)))
        case spaces.Text() if path.split("/", 1)[0] == "obs":
            return Leaf(kind="text", shape=(_longest_bytes(space),), dtype="uint8")
        case _:
            raise ConfigError(f"{path} is a {type(space).__name__} space; supported are {SUPPORTED}")


def _bytes(space: spaces.Text, text: str) -> Array:
    return np.frombuffer(text.encode().ljust(_longest_bytes(space), b"\0"), np.uint8)


def _longest_bytes(space: spaces.Text) -> int:
    """Bytes of the longest text, as UTF-8."""
    return space.max_length * max(len(character.encode()) for character in space.character_set)


def _box(space: spaces.Box) -> Leaf:
    dtype = "float32" if space.dtype == np.float64 else str(space.dtype)
    return Leaf(kind="box", shape=space.shape, dtype=dtype, low=_bound(space.low), high=_bound(space.high))


def _bound(bound: Array) -> float | tuple[float, ...]:
    values = tuple(float(x) for x in np.unique(bound))
    return values[0] if len(values) == 1 else tuple(float(x) for x in bound.flat)


def _multi_discrete(categories: tuple[int, ...]) -> Leaf:
    return Leaf(kind="multi_discrete", shape=(len(categories),), dtype="int64", categories=categories)
