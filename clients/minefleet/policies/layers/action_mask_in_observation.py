"""Masks of allowed actions: the leaf `action_mask` of a Dict observation, one element per category, 0 where forbidden.

`ActorCritic` uses them by itself. A policy with a `forward` of its own does as it does:

    mask = mask_of(obs)
    params = self.action_head(features)
    if mask is not None:
        params = self.action_head.masked(params, mask)
"""

from collections.abc import Mapping

from minefleet.core.errors import ConfigError
from minefleet.core.schema import Leaf, Schema
from minefleet.core.tree import Tree, join

MASK = "action_mask"


def mask_of(obs: Tree) -> Tree | None:
    """The mask in an observation: a tree like the action, parts of which it may leave out. None if there is none."""
    return obs.get(MASK) if isinstance(obs, Mapping) else None


def without_mask(obs: Tree) -> Tree:
    """The observation without the mask, unless there is nothing else."""
    if mask_of(obs) is None or len(obs) == 1:
        return obs
    return {key: child for key, child in obs.items() if key != MASK}


def check_mask(schema: Schema) -> None:
    """Refuses a mask that does not fit the action.

    Raises:
        ConfigError: If it has another structure, or another number of elements than the action has categories.
    """
    mask = mask_of(schema.obs)
    if mask is not None:
        _check(mask, schema.action, MASK)


def _check(mask: Tree, action: Tree, path: str) -> None:
    if isinstance(mask, Mapping) and isinstance(action, Mapping):
        unknown = sorted(mask.keys() - action.keys())
        if unknown:
            raise ConfigError(f"the observation {path!r} masks {unknown[0]!r}, and the action has {sorted(action)}")
        for key in mask:
            _check(mask[key], action[key], join(path, key))
        return
    if isinstance(mask, Mapping) or isinstance(action, Mapping):
        raise ConfigError(f"the observation {path!r} must mirror the action: dicts where it has dicts")
    _check_leaf(mask, action, path)


def _check_leaf(mask: Leaf, action: Leaf, path: str) -> None:
    if not action.categories:
        raise ConfigError(f"the observation {path!r} masks a {action.kind}, which has no categories: leave it out")
    if mask.shape != (sum(action.categories),):
        raise ConfigError(
            f"the observation {path!r} has shape {mask.shape}; a mask has one element per category of the action: "
            f"{(sum(action.categories),)}"
        )
