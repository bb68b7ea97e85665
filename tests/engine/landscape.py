"""Plants: trees in forests and tufts of grass everywhere, at places that follow from the world's seed."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from .geometry import Box

TREE_CELL = 12
TUFT_CELL = 4
BARREN = frozenset({"desert", "ocean", "plains", "snowy_tundra", "sunflower_plains"})
"""Biomes without trees."""
LOGS = 4
"""Logs in a trunk."""
SIGHT_CELLS = 2
"""Visibility of trees and tufts, in cells of their own."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree; its crown stands on its trunk."""

    x: float
    z: float

    @property
    def trunk(self) -> Box:
        """The part of a tree that can be mined."""
        return Box(self.x, self.z, 1.0, float(LOGS))

    @property
    def crown(self) -> Box:
        """The part that cannot."""
        return Box(self.x, self.z, 4.0, 3.0, bottom=LOGS - 1.0)


def trees(seed: int, biome: str, x: float, z: float) -> Iterator[Tree]:
    """Trees near a place."""
    if biome not in BARREN:
        for cell in _cells(TREE_CELL, x, z):
            yield Tree(*_place(seed, TREE_CELL, *cell))


def tufts(seed: int, x: float, z: float) -> Iterator[Box]:
    """Tufts of grass near a place."""
    for cell in _cells(TUFT_CELL, x, z):
        yield Box(*_place(seed + 1, TUFT_CELL, *cell), 0.5, 0.4)


def _cells(size: int, x: float, z: float) -> Iterator[tuple[int, int]]:
    near = range(-SIGHT_CELLS, SIGHT_CELLS + 1)
    middle_x, middle_z = math.floor(x / size), math.floor(z / size)
    return ((middle_x + dx, middle_z + dz) for dx in near for dz in near)


@lru_cache(maxsize=4096)
def _place(seed: int, size: int, cell_x: int, cell_z: int) -> tuple[float, float]:
    """A place in a cell, well inside it."""
    mixed = hash((seed, size, cell_x, cell_z))
    return (cell_x + 0.2 + 0.6 * (mixed % 997) / 997) * size, (cell_z + 0.2 + 0.6 * (mixed // 997 % 991) / 991) * size
