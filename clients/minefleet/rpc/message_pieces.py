"""Cuts payloads into pieces, and bundles small parts into messages of that size."""

from collections.abc import Iterable, Iterator
from typing import TypeAlias, TypeVar

PIECE_BYTES = 2**20
"""Size of the pieces that fragments and tensors travel in: the fastest on loopback, and small against flow control."""

Part = TypeVar("Part")
Piece: TypeAlias = bytes | memoryview
"""A piece that was received; a view shares its bytes with the message that it came in."""


def pieces(payload: bytes) -> Iterator[bytes]:
    """Cuts a payload into pieces of at most `PIECE_BYTES`; an empty payload has none."""
    if 0 < len(payload) <= PIECE_BYTES:
        yield payload
        return
    view = memoryview(payload)
    for start in range(0, len(view), PIECE_BYTES):
        yield bytes(view[start : start + PIECE_BYTES])


def bundled(parts: Iterable[tuple[Part, int]]) -> Iterator[list[Part]]:
    """Gathers parts into messages: each takes parts until their bytes reach `PIECE_BYTES`.

    Args:
        parts: Each with its bytes, at most `PIECE_BYTES`.
    """
    message: list[Part] = []
    message_bytes = 0
    for part, part_bytes in parts:
        message.append(part)
        message_bytes += part_bytes
        if message_bytes >= PIECE_BYTES:
            yield message
            message, message_bytes = [], 0
    if message:
        yield message
