"""One picture of a video: what the environment shows, enlarged where it is small, above a bar of numbers."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from minefleet.core.schema import Leaf
from minefleet.core.tree import Tree, flatten

Frame = NDArray[np.uint8]

MIN_VIDEO_EDGE = 256
"""Frames are enlarged by whole factors until both edges have so many pixels, and the bar is readable."""
MIN_FRAME_EDGE = 8
"""Height and width below which a leaf of bytes is taken for something else than a picture."""
LINES = 3
COLUMNS = 22
"""Characters of the font's middle width that half a line holds."""
BACKGROUND, TEXT, FAINT = (24, 26, 31), (240, 240, 240), (150, 156, 166)


@dataclass(frozen=True, kw_only=True, slots=True)
class Caption:
    """The text of the bar."""

    step: int
    """Steps taken so far."""
    episode_return: float
    """Undiscounted return so far."""
    reward: float
    """Of the step that led here."""
    value: float | None
    """The policy's value in reward units; None where it made no decision."""
    version: int
    """The policy's."""
    task: str = ""
    note: str = ""
    """Takes the place of version and task."""


def pixel_path(obs: Tree) -> str | None:
    """The path of the largest leaf of a schema's observation that is a picture; None where there is none."""
    leaves: dict[str, Leaf] = flatten(obs)
    sizes = {path: int(np.prod(leaf.shape)) for path, leaf in leaves.items() if is_picture(leaf)}
    return max(sizes, key=sizes.__getitem__, default=None)


def is_picture(leaf: Leaf) -> bool:
    """Whether a leaf is a picture, or a stack of pictures, of bytes."""
    if leaf.kind != "box" or leaf.dtype != "uint8" or not 2 <= len(leaf.shape) <= 4:
        return False
    height, width, _ = to_rgb(np.zeros(leaf.shape, np.uint8)).shape
    return bool(min(height, width) >= MIN_FRAME_EDGE)


def to_rgb(frame: NDArray[Any]) -> Frame:
    """A picture as [H, W, 3]; of a stack the newest, the last one. Grey and channels first are understood."""
    if frame.ndim == 4:
        frame = frame[-1]
    if frame.ndim == 3 and frame.shape[0] <= 4 < frame.shape[2]:
        frame = np.moveaxis(frame, 0, -1)
    if frame.ndim == 3:
        channels = frame.shape[2]
        frame = frame[..., -3:] if channels % 3 == 0 else frame[..., -1]
    return np.repeat(frame[..., None], 3, -1) if frame.ndim == 2 else frame


def draw(frame: NDArray[Any], caption: Caption) -> Frame:
    """The picture [H, W, 3] uint8, both even, as yuv420p wants it."""
    shown = enlarged(to_rgb(frame))
    height, width = shown.shape[:2]
    line = line_height(width)
    total = height + LINES * line + line // 2
    canvas = Image.new("RGB", (width + width % 2, total + total % 2), BACKGROUND)
    canvas.paste(Image.fromarray(np.ascontiguousarray(shown)))
    write(ImageDraw.Draw(canvas), caption, width, height + line // 4, line)
    return np.asarray(canvas)


def enlarged(frame: Frame) -> Frame:
    """The frame, each pixel a square."""
    factor = max(1, -(-MIN_VIDEO_EDGE // min(frame.shape[:2])))
    return np.repeat(np.repeat(frame, factor, 0), factor, 1)


def line_height(width: int) -> int:
    """Of the bar, in pixels."""
    return min(max(width // 14, 16), 28)


def write(pen: ImageDraw.ImageDraw, caption: Caption, width: int, top: int, line: int) -> None:
    """Writes the bar's lines, in two columns."""
    font = ImageFont.load_default(line * 3 / 4)
    value = "" if caption.value is None else f"value {caption.value:.2f}"
    rows = [
        (f"step {caption.step}", f"return {caption.episode_return:.2f}"),
        (value, f"reward {caption.reward:.2f}"),
        (caption.note, "") if caption.note else (f"version {caption.version}", caption.task),
    ]
    margin = line // 3
    for number, (left, right) in enumerate(rows):
        colour = TEXT if number < LINES - 1 or caption.note else FAINT
        at = top + number * line
        pen.text((margin, at), left, colour, font)
        pen.text((width // 2 + margin, at), shortened(right), colour, font)


def shortened(text: str) -> str:
    """The beginning of a text that fits into a column."""
    return text if len(text) <= COLUMNS else f"{text[: COLUMNS - 1]}…"
