"""What there is to see of a slot."""

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from minefleet.run import Run
from minefleet.tree import flatten
from minefleet_actor.pool import Pool
from minefleet_actor.video.picture import pixel_path

Lens = Callable[[int], NDArray[Any]]
"""What a slot shows now; the array is the pool's."""


def make_lens(run: Run, pool: Pool) -> Lens | None:
    """Frames that slots render, else the largest picture of their observations; None where neither is."""
    if run.frame_shape is not None:
        return lambda slot: pool.frames[slot]
    path = pixel_path(run.schema.obs)
    return None if path is None else lambda slot: flatten(pool.obs)[path][slot]
