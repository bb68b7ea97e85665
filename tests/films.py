"""Reads videos."""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray


def pictures(path: Path) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Yields the pictures of a video [H, W, 3], each with the number of its frame."""
    with av.open(str(path)) as container:
        (stream,) = container.streams.video
        # As if no frame had been left out.
        fps = Fraction(stream.guessed_rate or 1)
        for frame in container.decode(stream):
            assert frame.time is not None
            yield round(frame.time * fps), frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False)
