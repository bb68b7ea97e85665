"""MP4 files, written frame by frame: nothing is kept in memory but what the encoder looks ahead."""

import logging
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import cast

import av
import numpy as np
from av.video.stream import VideoStream
from numpy.typing import NDArray

logger = logging.getLogger(__name__)

QUALITY = {"crf": "23", "preset": "veryfast"}


class Mp4:
    """A file under way. Frames may be left out: each is shown until the next one's time."""

    def __init__(self, path: Path, shape: tuple[int, ...], fps: int) -> None:
        """Opens the file.

        Args:
            path: Of the file.
            shape: [H, W, 3] of every frame, H and W even.
            fps: Frames per second, of those that are not left out.
        """
        self._fps = fps
        self._container = av.open(str(path), "w", format="mp4", options={"movflags": "faststart"})
        try:
            self._stream = cast(VideoStream, self._container.add_stream(codec(), rate=fps))
        except BaseException:
            self._container.close()
            raise
        self._stream.height, self._stream.width = shape[:2]
        self._stream.pix_fmt = "yuv420p"
        # The cores are the environments'.
        self._stream.codec_context.thread_count = 1
        self._stream.options = dict(QUALITY) if codec() == "libx264" else {}

    def add(self, picture: NDArray[np.uint8], number: int) -> None:
        """Shows a picture at the time of frame `number`, which rises."""
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
        frame.pts, frame.time_base = number, Fraction(1, self._fps)
        self._container.mux(self._stream.encode(frame))

    def close(self) -> None:
        """Writes the rest."""
        try:
            self._container.mux(self._stream.encode(None))
        finally:
            self._container.close()


@cache
def codec() -> str:
    """H.264 where there is an encoder of it."""
    if "libx264" in av.codecs_available:
        return "libx264"
    logger.warning("this FFmpeg has no libx264: videos are MPEG-4 Part 2, larger, and played by fewer programs")
    return "mpeg4"
