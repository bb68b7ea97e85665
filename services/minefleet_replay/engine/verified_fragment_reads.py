"""Reads fragments, many at once, and checks their bytes."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import xxhash

from minefleet.core.errors import CorruptError
from minefleet.v1 import fragment_pb2
from minefleet_replay.state.chunk import Chunk, FragmentEntry
from minefleet_replay.state.deduplication import ChunkName
from minefleet_replay.storage.payload_log import PayloadLog
from minefleet_replay.storage.rocksdb_store import Store
from minefleet_replay.storage.row_codec import FragmentRow, number_key

logger = logging.getLogger(__name__)

GROUP_BYTES = 4 * 2**20
"""Payload bytes that are read at once, unless one fragment has more."""
Stored = tuple[fragment_pb2.FragmentHeader, list[bytes]]
"""A fragment as it was appended: its header, and the pieces of its payload."""


class ReadItem(NamedTuple):
    """A fragment to read."""

    chunk: ChunkName
    fragment: FragmentEntry


def grouped(leased: Iterable[Chunk]) -> Iterator[list[ReadItem]]:
    """Yields the fragments of chunks, in order, in groups that are worth one read."""
    group: list[ReadItem] = []
    group_bytes = 0
    for chunk in leased:
        for fragment in chunk.fragments:
            if group and group_bytes + fragment.payload_bytes > GROUP_BYTES:
                yield group
                group, group_bytes = [], 0
            group.append(ReadItem(chunk.name, fragment))
            group_bytes += fragment.payload_bytes
    if group:
        yield group


def read(store: Store, payloads: PayloadLog, items: Sequence[ReadItem]) -> list[Stored | None]:
    """Reads fragments; None for those whose bytes are not what was appended."""
    keys = [number_key(item.fragment.number) for item in items]
    rows = store.get_many("meta", keys)
    return [_read(payloads, item, row) for item, row in zip(items, rows, strict=True)]


def _read(payloads: PayloadLog, item: ReadItem, row: bytes | None) -> Stored | None:
    name, fragment = item
    try:
        if row is None:
            raise CorruptError("its row is missing")
        meta = FragmentRow.from_row(fragment.number, row)
        pieces = payloads.read(fragment.place, fragment.payload_bytes)
        if meta.fragment.corrupt or _digest(pieces) != meta.checksum:
            raise CorruptError("its bytes do not match their checksum")
    except CorruptError as error:
        logger.warning("cannot read fragment %s/%d: %s", name.stream, fragment.sequence, error)
        return None
    return fragment_pb2.FragmentHeader.FromString(meta.header), pieces


def _digest(pieces: Sequence[bytes]) -> int:
    digest = xxhash.xxh3_64()
    for piece in pieces:
        digest.update(piece)
    return int(digest.intdigest())
