"""Keys and values of the store's hot families. What is rare and small is JSON, in the module it belongs to."""

import json
from dataclasses import dataclass
from itertools import islice
from struct import Struct

from minefleet.core.errors import CorruptError
from minefleet.v1 import fragment_pb2
from minefleet_replay.state.chunk import FragmentEntry, PayloadLocation
from minefleet_replay.state.deduplication import ChunkName, StreamNames
from minefleet_replay.state.ledger_totals import Reason

RUN_STATE = b"standing"
LEDGER = b"ledger"
GONE_ACTORS = b"actors-gone"
ACTOR = b"actor/"
UNEXPLAINED = b"unexplained"
"""Fragments that left without a record of why: those of a store that was set aside."""
END_OF_ACTORS = b"actor0"
"""The first key after those that begin with `ACTOR`."""

_META = Struct("<QQQQQIQQ??IQHH")
_USES = Struct("<I")
_NAMES = Struct("<QHHHH")
_PAIR = Struct("<QQ")


@dataclass(frozen=True, slots=True)
class FragmentRow:
    """The row of a fragment: the index's part, then its header."""

    stream: str
    fragment: FragmentEntry
    checksum: int
    header: bytes
    """A `FragmentHeader`, as it came."""

    def to_row(self) -> bytes:
        """Packs it."""
        fragment, stream, task = self.fragment, self.stream.encode(), self.fragment.task.encode()
        fixed = _META.pack(
            fragment.sequence,
            fragment.payload_bytes,
            fragment.oldest_version,
            fragment.newest_version,
            self.checksum,
            fragment.steps,
            fragment.chunk,
            fragment.chunk_start,
            fragment.closes_chunk,
            fragment.corrupt,
            *fragment.place,
            len(stream),
            len(task),
        )
        return fixed + stream + task + self.header

    @classmethod
    def from_row(cls, number: int, row: bytes) -> "FragmentRow":
        """Inverts `to_row`."""
        values = _META.unpack_from(row)
        checksum, length = values[4], values[-2] + values[-1]
        stream, fragment = read_fragment(number, row)
        return cls(stream, fragment, checksum, row[_META.size + length :])

    @classmethod
    def of(cls, number: int, header: fragment_pb2.FragmentHeader, place: PayloadLocation) -> "FragmentRow":
        """The parts of a header that the index and the store need."""
        stream, packed = header.name.stream, header.SerializeToString()
        fragment = FragmentEntry(
            sequence=header.name.sequence,
            number=number,
            payload_bytes=header.payload_bytes,
            oldest_version=header.oldest_version,
            newest_version=header.newest_version,
            steps=header.length,
            chunk=header.chunk,
            chunk_start=header.chunk_start,
            closes_chunk=header.closes_chunk,
            place=place,
            task=header.task,
            row_bytes=_META.size + len(stream.encode()) + len(header.task.encode()) + len(packed),
        )
        return cls(stream, fragment, header.checksum, packed)


def read_fragment(number: int, row: bytes) -> tuple[str, FragmentEntry]:
    """The index's part of a fragment's row: its stream, and the rest."""
    values = _META.unpack_from(row)
    sequence, payload_bytes, oldest, newest, _, steps, chunk, start, closes, corrupt, file, offset, length, more = (
        values
    )
    task_at = _META.size + length
    return row[_META.size : task_at].decode(), FragmentEntry(
        sequence=sequence,
        number=number,
        payload_bytes=payload_bytes,
        oldest_version=oldest,
        newest_version=newest,
        steps=steps,
        chunk=chunk,
        chunk_start=start,
        closes_chunk=closes,
        place=PayloadLocation(file, offset),
        task=row[task_at : task_at + more].decode(),
        corrupt=corrupt,
        row_bytes=len(row),
    )


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
    parts = (names.fragments, names.chunks, names.episodes, names.checksums)
    return _NAMES.pack(names.last_append, *map(len, parts)) + b"".join(
        _PAIR.pack(*pair) for part in parts for pair in part
    )


def read_names(row: bytes) -> StreamNames:
    """Inverts `names_row`."""
    last_append, *lengths = _NAMES.unpack_from(row)
    pairs = [(low, high) for low, high in _PAIR.iter_unpack(row[_NAMES.size :])]
    if len(pairs) != sum(lengths):
        raise CorruptError("a stream's row of names has another length than it says")
    rest = iter(pairs)
    fragments, chunks, episodes, checksums = (tuple(islice(rest, length)) for length in lengths)
    return StreamNames(fragments, chunks, episodes, checksums, last_append)


def drop_row(name: ChunkName, fragments: list[FragmentEntry], reason: Reason, uses: int, at: float) -> bytes:
    """Packs why fragments of a chunk left, and when: seconds since 1970."""
    return json.dumps(
        {
            "stream": name.stream,
            "chunk": name.number,
            "sequences": [fragment.sequence for fragment in fragments],
            "reason": reason,
            "uses": uses,
            "steps": sum(fragment.steps for fragment in fragments),
            "oldest_version": min(fragment.oldest_version for fragment in fragments),
            "at": at,
        }
    ).encode()
