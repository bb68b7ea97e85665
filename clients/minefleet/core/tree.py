"""Trees of arrays: an array, or a dict of trees. The shape that observations, actions and recurrent states take.

A leaf is named by its path, keys joined by '/'; the root leaf of a bare array has the name "".
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

Tree: TypeAlias = Any
"""A leaf, or a dict from names without '/' to trees. Python cannot express the recursion over a leaf type usefully."""

Leaf = TypeVar("Leaf")
Out = TypeVar("Out")


def flatten(tree: Tree) -> dict[str, Any]:
    """Maps each leaf's path to the leaf, in sorted order of keys."""
    if not isinstance(tree, Mapping):
        return {"": tree}
    flat: dict[str, Any] = {}
    for key in sorted(tree):
        for path, leaf in flatten(tree[key]).items():
            flat[join(key, path)] = leaf
    return flat


def unflatten(flat: Mapping[str, Any]) -> Tree:
    """Inverts `flatten`. An empty mapping is an empty tree."""
    if set(flat) == {""}:
        return flat[""]
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        *parents, last = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return tree


def join(*parts: str) -> str:
    """Joins path parts, leaving out empty ones."""
    return "/".join(part for part in parts if part)


def tree_map(function: Callable[..., Out], tree: Tree, *rest: Tree) -> Tree:
    """Applies `function` to the leaves of trees of one structure and returns a tree of the results."""
    if not isinstance(tree, Mapping):
        return function(tree, *rest)
    return {key: tree_map(function, tree[key], *(other[key] for other in rest)) for key in tree}
