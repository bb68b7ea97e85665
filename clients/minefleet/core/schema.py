"""The observation and action schema of an environment, as plain data.

Free of gymnasium, so that replay and tools can read it; `minefleet_env.space_conversion` makes it from spaces.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import xxhash

from minefleet.core.tree import Tree, flatten, tree_map, unflatten

MIN_IMAGE_EDGE = 36
"""Height and width of the smallest image that the default convolutions take; smaller ones are read as numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Leaf:
    """One array of an observation or action, for one step."""

    kind: Literal["box", "discrete", "multi_discrete", "text"]
    """`box`: numbers in a range. `discrete`: one category, shape (). `multi_discrete`: several, shape (n,).
    `text`: UTF-8 bytes, zeros after them, shape (longest,)."""
    shape: tuple[int, ...]
    """Shape of one step."""
    dtype: str
    """NumPy name: "uint8", "float32", "int64"."""
    categories: tuple[int, ...] = ()
    """Numbers of categories: one for `discrete`, one per element for `multi_discrete`. Categories count from 0."""
    low: float | tuple[float, ...] = -math.inf
    """Smallest value of a box: one for all elements, or one per element in C order."""
    high: float | tuple[float, ...] = math.inf
    """Largest value of a box, likewise."""

    @property
    def is_pixels(self) -> bool:
        """Whether this is an image [height, width, channels] of bytes."""
        return self.kind == "box" and self.dtype == "uint8" and len(self.shape) == 3

    @property
    def is_grid(self) -> bool:
        """Whether this is a small image, as MiniGrid's 7 by 7 cells, read as numbers whatever the convolutions."""
        return self.is_pixels and max(self.shape[:2]) < MIN_IMAGE_EDGE

    @property
    def is_image(self) -> bool:
        """Whether these are pixels, and no grid: convolutions see them."""
        return self.is_pixels and not self.is_grid

    def zeros(self, *leading: int) -> np.ndarray[Any, Any]:
        """An array of zeros for [*leading, *shape]."""
        return np.zeros((*leading, *self.shape), self.dtype)


@dataclass(frozen=True, kw_only=True, slots=True)
class Schema:
    """The arrays of one step."""

    obs: Tree
    """Tree of `Leaf`."""
    action: Tree
    """Tree of `Leaf`."""

    @property
    def fingerprint(self) -> str:
        """Equal for equal schemas, whatever the machine."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return xxhash.xxh3_64_hexdigest(text.encode())

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back; infinities become strings, so that YAML and JSON agree."""
        return {
            side: {path: _leaf_to_dict(leaf) for path, leaf in flatten(getattr(self, side)).items()}
            for side in ("obs", "action")
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Schema":
        """Inverts `to_dict`."""
        return cls(
            **{
                side: unflatten({path: _leaf_from_dict(leaf) for path, leaf in data[side].items()})
                for side in ("obs", "action")
            }
        )


def zeros(tree: Tree, *leading: int) -> Tree:
    """A tree of arrays of zeros for a tree of `Leaf`."""
    return tree_map(lambda leaf: leaf.zeros(*leading), tree)


def _leaf_to_dict(leaf: Leaf) -> dict[str, Any]:
    data = asdict(leaf)
    for key in ("shape", "categories"):
        data[key] = list(data[key])
    for key in ("low", "high"):
        bound = data[key]
        data[key] = [str(float(x)) for x in bound] if isinstance(bound, tuple) else str(float(bound))
    return data


def _leaf_from_dict(data: Mapping[str, Any]) -> Leaf:
    values = dict(data)
    for key in ("shape", "categories"):
        values[key] = tuple(int(x) for x in values[key])
    for key in ("low", "high"):
        bound = values[key]
        values[key] = float(bound) if isinstance(bound, str) else tuple(float(x) for x in bound)
    return Leaf(**values)
