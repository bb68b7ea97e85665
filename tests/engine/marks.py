"""A mark in each picture, by which one sees of a stored observation which engine drew it, and when.

64 bits, black and white, in two rows of cells over the top of the picture, large enough to survive a resize: engine,
tick and their checksum.
"""

from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

COLUMNS = 32
ROWS = 2
CELL_ROWS = 30
"""A cell is this part of the picture's height."""
TICKS = 2**24
_BODY_BYTES = 6


class Mark(NamedTuple):
    """Identifies a picture."""

    engine: int
    """24 bits that each engine draws for itself."""
    tick: int
    """Steps and missions of that engine before the picture."""


def draw(frame: NDArray[np.uint8], mark: Mark) -> None:
    """Draws a mark over the top of a picture [height, width, 3]."""
    height, width = frame.shape[:2]
    bits = np.unpackbits(np.frombuffer(_pack(mark), np.uint8)).reshape(ROWS, COLUMNS)
    rows, columns = height * ROWS // CELL_ROWS, width
    row_of, column_of = np.arange(rows) * CELL_ROWS // height, np.arange(columns) * COLUMNS // width
    frame[:rows] = 255 * bits[row_of[:, None], column_of[None, :], None]


def read(frame: NDArray[np.uint8]) -> Mark | None:
    """Reads the mark of a picture of any size [height, width, 3]; None where there is no good one."""
    height, width = frame.shape[:2]
    rows = ((np.arange(ROWS) + 0.5) * height / CELL_ROWS).astype(int)
    columns = ((np.arange(COLUMNS) + 0.5) * width / COLUMNS).astype(int)
    bits = frame[rows[:, None], columns[None, :]].mean(-1) > 127
    data = np.packbits(bits.reshape(-1)).tobytes()
    mark = Mark(int.from_bytes(data[:3], "big"), int.from_bytes(data[3:_BODY_BYTES], "big"))
    return mark if _pack(mark) == data else None


def _pack(mark: Mark) -> bytes:
    body = mark.engine.to_bytes(3, "big") + (mark.tick % TICKS).to_bytes(3, "big")
    return body + (crc32(body) & 0xFFFF).to_bytes(2, "big")
