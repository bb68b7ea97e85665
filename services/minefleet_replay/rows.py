"""Keys and values of the store's hot families. What is rare and small is JSON, in the module it belongs to."""

import json
from dataclasses import dataclass
from struct import Struct

from minefleet.errors import CorruptError
from minefleet.v1 import fragment_pb2
from minefleet_replay.index import Fragment, Place
from minefleet_replay.ledger import Reason
from minefleet_replay.names import ChunkName, Ranges, StreamNames

STANDING = b"standing"
LEDGER = b"ledger"
GONE_ACTORS = b"actors-gone"
ACTOR = b"actor/"
UNEXPLAINED = b"unexplained"
"""Fragments that left without a record of why: those of a store that was set aside."""
AFTER_ACTORS = b"actor0"
"""The first key after those that begin with `ACTOR`."""

_META = Struct("<QQQQQ??IQH")
_USES = Struct("<I")
_NAMES = Struct("<QHHH")
_PAIR = Struct("<QQ")


@dataclass(frozen=True, slots=True)
class Meta:
    """What a fragment is: what the index needs, then its header."""

    stream: str
    fragment: Fragment
    checksum: int
    header: bytes
    """A `FragmentHeader`, as it came."""

    def to_row(self) -> bytes:
        """Packs it."""
        fragment, stream = self.fragment, self.stream.encode()
        fixed = _META.pack(
            fragment.sequence,
            fragment.payload_bytes,
            fragment.oldest_version,
            fragment.newest_version,
            self.checksum,
            fragment.closes_stream,
            fragment.corrupt,
            *fragment.place,
            len(stream),
        )
        return fixed + stream + self.header

    @classmethod
    def from_row(cls, number: int, row: bytes) -> "Meta":
        """Inverts `to_row`."""
        *_, checksum, _, _, _, _, length = _META.unpack_from(row)
        stream, fragment = read_fragment(number, row)
        return cls(stream, fragment, checksum, row[_META.size + length :])

    @classmethod
    def of(cls, number: int, header: fragment_pb2.FragmentHeader, place: Place) -> "Meta":
        """What the index and the store need of a header."""
        stream, packed = header.name.stream, header.SerializeToString()
        fragment = Fragment(
            sequence=header.name.sequence,
            number=number,
            payload_bytes=header.payload_bytes,
            oldest_version=header.oldest_version,
            newest_version=header.newest_version,
            closes_stream=header.closes_stream,
            place=place,
            row_bytes=_META.size + len(stream.encode()) + len(packed),
        )
        return cls(stream, fragment, header.checksum, packed)


def read_fragment(number: int, row: bytes) -> tuple[str, Fragment]:
    """What the index needs of a fragment's row: its stream, and the rest."""
    sequence, payload_bytes, oldest, newest, _, closes, corrupt, file, offset, length = _META.unpack_from(row)
    stream, place = row[_META.size : _META.size + length].decode(), Place(file, offset)
    return stream, Fragment(sequence, number, payload_bytes, oldest, newest, closes, place, corrupt, len(row))


def number_key(number: int) -> bytes:
    """The key of an append number, a chunk id, a lease or an episode: keys sort as numbers do."""
    return number.to_bytes(8, "big")


def number_of(key: bytes) -> int:
    """Inverts `number_key`."""
    return int.from_bytes(key, "big")


def uses_row(uses: int) -> bytes:
    """Packs acked uses."""
    return _USES.pack(uses)


def read_uses(row: bytes) -> int:
    """Inverts `uses_row`."""
    uses: int = _USES.unpack(row)[0]
    return uses


def names_row(names: StreamNames) -> bytes:
    """Packs what a stream has sent."""
    pairs = (*names.fragments, *names.episodes, *names.checksums)
    head = _NAMES.pack(names.heard, len(names.fragments), len(names.episodes), len(names.checksums))
    return head + b"".join(_PAIR.pack(*pair) for pair in pairs)


def read_names(row: bytes) -> StreamNames:
    """Inverts `names_row`."""
    heard, fragments, episodes, checksums = _NAMES.unpack_from(row)
    pairs: Ranges = tuple((low, high) for low, high in _PAIR.iter_unpack(row[_NAMES.size :]))
    if len(pairs) != fragments + episodes + checksums:
        raise CorruptError("a stream's row of names has another length than it says")
    middle = fragments + episodes
    return StreamNames(pairs[:fragments], pairs[fragments:middle], pairs[middle:], heard)


def drop_row(name: ChunkName, fragments: list[Fragment], reason: Reason, uses: int, at: float) -> bytes:
    """Packs why fragments of a chunk left, and when: seconds since 1970."""
    return json.dumps(
        {
            "stream": name.stream,
            "chunk": name.number,
            "sequences": [fragment.sequence for fragment in fragments],
            "reason": reason,
            "uses": uses,
            "oldest_version": min(fragment.oldest_version for fragment in fragments),
            "at": at,
        }
    ).encode()
