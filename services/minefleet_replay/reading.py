"""Reads fragments from the store, many at once, and checks their bytes.

RocksDB reads many rows without the GIL, and a single one with it.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import xxhash

from minefleet.errors import CorruptError
from minefleet_replay.index import Fragment
from minefleet_replay.lending import Lent
from minefleet_replay.names import ChunkName
from minefleet_replay.rows import Meta, number_key, piece_keys
from minefleet_replay.store import Store

logger = logging.getLogger(__name__)

GROUP_BYTES = 4 * 2**20
"""Payload bytes that are read at once, unless one fragment has more."""


class Wish(NamedTuple):
    """A fragment to read."""

    chunk: ChunkName
    fragment: Fragment


class Stored(NamedTuple):
    """A fragment as it was appended."""

    header: bytes
    """A `FragmentHeader`."""
    pieces: list[bytes]


def grouped(lent: Iterable[Lent]) -> Iterator[list[Wish]]:
    """Yields the fragments of chunks, in order, in groups that are worth one read."""
    group: list[Wish] = []
    group_bytes = 0
    for chunk in lent:
        for fragment in chunk.fragments:
            if group and group_bytes + fragment.payload_bytes > GROUP_BYTES:
                yield group
                group, group_bytes = [], 0
            group.append(Wish(chunk.name, fragment))
            group_bytes += fragment.payload_bytes
    if group:
        yield group


def read(store: Store, wishes: Sequence[Wish]) -> list[Stored | None]:
    """Reads fragments; None for those whose bytes are not what was appended."""
    try:
        return _read(store, wishes)
    except CorruptError as error:
        if len(wishes) == 1:
            (name, fragment), *_ = wishes
            logger.warning("cannot read fragment %s/%d: %s", name.stream, fragment.sequence, error)
            return [None]
        return [stored for wish in wishes for stored in read(store, [wish])]


def _read(store: Store, wishes: Sequence[Wish]) -> list[Stored | None]:
    keys = [piece_keys(wish.fragment) for wish in wishes]
    metas = store.get_many("meta", [number_key(wish.fragment.number) for wish in wishes])
    pieces = iter(store.get_many("data", [key for group in keys for key in group]))
    return [
        _checked(wish.fragment, meta, [next(pieces) for _ in group])
        for wish, meta, group in zip(wishes, metas, keys, strict=True)
    ]


def _checked(fragment: Fragment, row: bytes | None, pieces: list[bytes | None]) -> Stored | None:
    digest, sound = xxhash.xxh3_64(), list[bytes]()
    for piece in pieces:
        if piece is None:
            return None
        digest.update(piece)
        sound.append(piece)
    meta = Meta.from_row(fragment.number, row) if row is not None else None
    if meta is None or meta.fragment.corrupt or meta.checksum != digest.intdigest():
        return None
    return Stored(meta.header, sound)
