"""Reads what wandb wrote offline: a log of protobuf records in LevelDB's format, after a header of seven bytes."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEADER_BYTES = 7
BLOCK_BYTES = 32768
RECORD = struct.Struct("<IHB")
"""Checksum, length and kind of a piece of a record."""
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(path: Path) -> Iterator[Any]:
    """Every record of a run's file, in order, as far as it is written: wandb closes it a moment after the run."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]  # Its stub hides it.

    for data in _messages(path.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        yield record


def _messages(data: bytes) -> Iterator[bytes]:
    place, message = HEADER_BYTES, b""
    while place + RECORD.size <= len(data):
        left = BLOCK_BYTES - place % BLOCK_BYTES
        if left < RECORD.size:
            place += left
            continue
        _, length, kind = RECORD.unpack_from(data, place)
        place += RECORD.size
        if place + length > len(data):
            return
        message += data[place : place + length]
        place += length
        if kind in (FULL, LAST):
            yield message
            message = b""
