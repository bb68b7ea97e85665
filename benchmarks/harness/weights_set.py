"""The weights that `benchmarks/weights.py` moves: as many and as large as those of VPT 1x."""

import itertools

import numpy as np
from numpy.typing import NDArray

Weights = dict[str, NDArray[np.float32]]

SHAPES: tuple[tuple[int, tuple[int, ...]], ...] = (
    (8, (1024, 4096)),
    (32, (1024, 1024)),
    (24, (128, 128, 3, 3)),
    (236, (1024,)),
)
"""Number of tensors of each shape: 300 of 4 KB to 17 MB, 284 MB in all."""


def draw(seed: int) -> Weights:
    """All tensors, distinct for every seed, the large ones among the small ones as they are in a network."""
    rng = np.random.default_rng(seed)
    shapes = [itertools.repeat(shape, count) for count, shape in SHAPES]
    rows = itertools.chain.from_iterable(itertools.zip_longest(*shapes))
    return {
        f"layer.{number}.weight": rng.standard_normal(shape, np.float32)
        for number, shape in enumerate(filter(None, rows))
    }


def total_bytes(weights: Weights) -> int:
    """Bytes of all arrays."""
    return sum(array.nbytes for array in weights.values())


def partly_changed(weights: Weights, seed: int, share: float) -> Weights:
    """The same weights with new values in tensors of at most that share of the bytes, the first that fit."""
    drawn, left = draw(seed), share * total_bytes(weights)
    changed: Weights = {}
    for name, array in weights.items():
        if array.nbytes <= left:
            changed[name] = drawn[name]
            left -= array.nbytes
    return weights | changed
