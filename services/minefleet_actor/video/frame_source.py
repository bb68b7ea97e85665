"""Renders the picture of a slot for a video."""

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from minefleet.core.errors import ConfigError
from minefleet.core.tree import flatten
from minefleet.runs.run_yaml import Run
from minefleet_actor.pool import Pool
from minefleet_actor.video.picture import pixel_path

Lens = Callable[[int], NDArray[Any]]
"""The slot's picture; the array is the pool's."""


def can_film(run: Run) -> bool:
    """Whether there is anything to see."""
    return run.frame_shape is not None or pixel_path(run.schema.obs) is not None


def make_lens(run: Run, pool: Pool) -> Lens:
    """Frames that slots render, else the largest picture of their observations.

    Raises:
        ConfigError: If there is neither.
    """
    if run.frame_shape is not None:
        return lambda slot: pool.frames[slot]
    path = pixel_path(run.schema.obs)
    if path is None:
        raise ConfigError("the environment shows nothing that could be filmed")
    return lambda slot: flatten(pool.obs)[path][slot]
