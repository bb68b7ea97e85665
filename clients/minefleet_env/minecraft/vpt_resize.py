"""Frames as VPT was trained on: 640×360 made 128×128, bilinear, without regard to the aspect."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from minefleet_env.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


def resizer(frame_size: Sequence[int]) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Returns a function that resizes frames, [height, width, 3] uint8, to `frame_size`, [height, width].

    It is OpenCV's `INTER_LINEAR`, as in `agent.py` of OpenAI's Video-Pre-Training: with any other filter VPT sees
    what it was not trained on. MineRL and MineStudio both bring OpenCV.

    Raises:
        RefusedError: If OpenCV is missing, or the size is none.
    """
    try:
        cv2 = importlib.import_module("cv2")
    except ImportError as error:
        raise RefusedError(f"frames of Minecraft are resized by OpenCV, and {sys.executable} says: {error}") from error
    if (
        not isinstance(frame_size, (list, tuple))
        or len(frame_size) != 2
        or not all(isinstance(side, int) and side > 0 for side in frame_size)
    ):
        raise RefusedError(f"frame_size must be [height, width], both >= 1, got {frame_size!r}")
    # Cores go to processes, not to threads in each of them.
    cv2.setNumThreads(1)
    height, width = frame_size

    def resize(frame: NDArray[Any]) -> NDArray[Any]:
        # MineRL's frames are views with their rows backwards, which OpenCV would copy whole. Turning what is resized
        # comes to the same: exactly for 360 rows made 128, elsewhere but for the rounding of single values.
        rows = -1 if frame.strides[0] < 0 else 1
        return cv2.resize(frame[::rows], (width, height), interpolation=cv2.INTER_LINEAR)[::rows]  # type: ignore[no-any-return]

    return resize
