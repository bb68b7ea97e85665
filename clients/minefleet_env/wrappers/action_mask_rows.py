"""Finds the masks of allowed actions among an observation's rows, and those that allow nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MASK = "action_mask"


def masks_of(
    rows: Mapping[str, NDArray[Any]], categories: Mapping[str, Sequence[int]]
) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Pairs each mask among the rows of an observation with where its parts begin.

    Args:
        rows: The observation's leaves by path; those under `action_mask` mirror the action.
        categories: Numbers of categories of the action's leaves by path; none for what has no categories.
    """
    found = []
    for path, counts in categories.items():
        row = rows.get(f"{MASK}/{path}" if path else MASK)
        if row is not None and counts and row.size == sum(counts):
            found.append((row.reshape(-1), np.cumsum((0, *counts[:-1]))))
    return found


def allow_nothing(masks: Iterable[tuple[NDArray[Any], NDArray[Any]]]) -> bool:
    """Whether a part of one of the masks has no category left."""
    return any(not np.logical_or.reduceat(row != 0, starts).all() for row, starts in masks)
