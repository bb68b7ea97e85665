"""MP4 files, written frame by frame: nothing is kept in memory but what the encoder looks ahead."""

import logging
from collections.abc import Iterator
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
SHARE_OF_BYTES = 0.8
"""What the copy of a video is meant to have of the bytes that it may: encoders miss their aim."""
LEAST_BITS_PER_S = 10_000


class Mp4:
    """A file under way. Frames may be left out: each is shown until the next one's time."""

    def __init__(self, path: Path, shape: tuple[int, ...], fps: int, *, bits_per_s: int = 0) -> None:
        """Opens the file.

        Args:
            path: Of the file.
            shape: [H, W, 3] of every frame, H and W even.
            fps: Frames per second, of those that are not left out.
            bits_per_s: Aim at so many; 0 aims at a quality instead.
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
        if bits_per_s:
            self._stream.bit_rate = bits_per_s
            self._stream.options = {"preset": "veryfast", "maxrate": str(bits_per_s), "bufsize": str(2 * bits_per_s)}

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


def pictures(path: Path) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Yields the pictures of a video [H, W, 3], each with the number of its frame."""
    with av.open(str(path)) as container:
        (stream,) = container.streams.video
        for frame in container.decode(stream):
            assert frame.time is not None
            yield round(frame.time * rate_of(stream)), frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False)


def rate_of(stream: VideoStream) -> Fraction:
    """Frames per second, as if none were left out."""
    return Fraction(stream.guessed_rate or stream.average_rate or 1)


def copy_within(source: Path, target: Path, max_bytes: int) -> bool:
    """Encodes a video anew so that it has at most `max_bytes`; says whether that was possible."""
    with av.open(str(source)) as container:
        (stream,) = container.streams.video
        duration_s, fps, shape = (
            (container.duration or 0) / av.time_base,
            rate_of(stream),
            (stream.height, stream.width),
        )
    bits_per_s = int(SHARE_OF_BYTES * 8 * max_bytes / max(duration_s, 1.0))
    for share in (1, 2, 4):
        copy = Mp4(target, shape, round(fps), bits_per_s=max(bits_per_s // share, LEAST_BITS_PER_S))
        try:
            for number, picture in pictures(source):
                copy.add(picture, number)
        finally:
            copy.close()
        if target.stat().st_size <= max_bytes:
            return True
    return False
