"""Images of bytes, [height, width, channels], made smaller and grey."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minefleet_env.errors import RefusedError

Image = NDArray[Any]
LUMA = np.array([0.2125, 0.7154, 0.0721])
"""Shares of red, green and blue in the brightness, as in `gymnasium.wrappers.GrayscaleObservation`."""


def grey(image: Image) -> Image:
    """[height, width, 1]: the brightness of an image of three channels; one of one channel is as it is.

    Raises:
        RefusedError: If there is another number of channels.
    """
    channels = image.shape[-1]
    if channels == 1:
        return image
    if channels != len(LUMA):
        raise RefusedError(f"env.wrappers.grey needs images of 1 or 3 channels, got {channels}")
    brightness: Image = np.sum(image * LUMA, axis=-1, keepdims=True).astype(np.uint8)
    return brightness


def resizer(height: int, width: int) -> Callable[[Image], Image]:
    """Returns a function that resizes images of any number of channels; each pixel is the mean of the area it covers.

    Raises:
        RefusedError: If Pillow is missing.
    """
    try:
        from PIL import Image as pillow  # noqa: N813  # The type here has that name.
    except ImportError as error:
        raise RefusedError(f"env.wrappers.resize needs Pillow: {error}") from error

    def one(image: Image) -> Image:
        return np.asarray(pillow.fromarray(image).resize((width, height), pillow.Resampling.BOX))

    def each(image: Image) -> Image:
        # Pillow takes four channels for colours and opacity, which it mixes, and knows no five.
        if image.shape[-1] == 3:
            return one(image)
        return np.stack([one(image[..., channel]) for channel in range(image.shape[-1])], axis=-1)

    return each
