"""Names of chunks, and what each stream has ever sent.

A name is remembered with its checksum while it is among the newest `WINDOW` of its stream, and as part of a range for
as long as the stream is remembered. The streams that reported last are remembered, `MAX_STREAMS` at most.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from minefleet.core.errors import ConflictError, RejectedError

WINDOW = 16
"""Names per stream whose checksum is remembered after the fragment has left."""

MAX_GAPS = 64
"""Gaps in the numbers of one stream beyond which it is refused."""

MAX_STREAMS = 2**16
"""Streams that are remembered at most."""

Ranges = tuple[tuple[int, int], ...]
"""Half-open ranges of numbers, rising, apart from each other."""


class ChunkName(NamedTuple):
    """Names a chunk for ever."""

    stream: str
    number: int


@dataclass(frozen=True, slots=True)
class StreamNames:
    """All names that a stream has ever sent."""

    fragments: Ranges = ()
    chunks: Ranges = ()
    """Numbers of those of which a fragment has come."""
    episodes: Ranges = ()
    checksums: tuple[tuple[int, int], ...] = ()
    """(sequence, checksum) of the newest `WINDOW` fragments to arrive, the latest last."""
    last_append: int = 0
    """Number of the last append that named the stream; decides which streams to forget."""

    def with_fragment(self, sequence: int, chunk: int, checksum: int, last_append: int) -> "StreamNames":
        """Remembers a fragment, and its chunk."""
        checksums = (*self.checksums[1 - WINDOW :], (sequence, checksum))
        chunks = self.chunks if _contains(self.chunks, chunk) else _add(self.chunks, chunk)
        fragments = _add(self.fragments, sequence)
        return replace(self, fragments=fragments, chunks=chunks, checksums=checksums, last_append=last_append)

    def with_episode(self, episode: int, last_append: int) -> "StreamNames":
        """Remembers an episode."""
        return replace(self, episodes=_add(self.episodes, episode), last_append=last_append)

    def knows_fragment(self, sequence: int, checksum: int) -> bool:
        """Whether the fragment was sent before.

        Raises:
            ConflictError: If it is known with other bytes.
        """
        if not _contains(self.fragments, sequence):
            return False
        known = dict(self.checksums).get(sequence, checksum)
        if known != checksum:
            raise ConflictError(
                f"fragment {sequence} is known with checksum {known:016x}, this one has {checksum:016x}; a name never "
                "means other bytes"
            )
        return True

    def knows_sequence(self, sequence: int) -> bool:
        """Whether a fragment of this number was sent before."""
        return _contains(self.fragments, sequence)

    def knows_chunk(self, chunk: int) -> bool:
        """Whether a fragment of this chunk was sent before."""
        return _contains(self.chunks, chunk)

    def knows_episode(self, episode: int) -> bool:
        """Whether the episode was recorded before."""
        return _contains(self.episodes, episode)


NOTHING = StreamNames()


class ChunkNames:
    """All remembered streams; the one that reported last comes last."""

    def __init__(self, streams: dict[str, StreamNames], max_streams: int = MAX_STREAMS) -> None:
        self._max_streams = max_streams
        self._streams = dict(sorted(streams.items(), key=lambda item: item[1].last_append))

    def __getitem__(self, stream: str) -> StreamNames:
        return self._streams.get(stream, NOTHING)

    def __contains__(self, stream: str) -> bool:
        return stream in self._streams

    def __len__(self) -> int:
        return len(self._streams)

    def remember(self, stream: str, names: StreamNames) -> None:
        """Records a stream's new state."""
        self._streams.pop(stream, None)
        self._streams[stream] = names

    def forget(self, stream: str) -> None:
        """Drops a stream."""
        self._streams.pop(stream, None)

    def surplus(self, newcomers: int) -> Iterator[str]:
        """Streams to forget so that so many new ones fit, the longest silent first."""
        excess = len(self._streams) + newcomers - self._max_streams
        return (stream for stream, _ in zip(self._streams, range(excess), strict=False))


def _contains(ranges: Ranges, number: int) -> bool:
    place = bisect_right(ranges, number, key=lambda span: span[0])
    return place > 0 and number < ranges[place - 1][1]


def _add(ranges: Ranges, number: int) -> Ranges:
    """The ranges with one more number, which they do not contain."""
    if ranges and number == ranges[-1][1]:
        return (*ranges[:-1], (ranges[-1][0], number + 1))
    merged = _merge(sorted((*ranges, (number, number + 1))))
    if len(merged) > MAX_GAPS:
        raise RejectedError(f"number {number} would leave more than {MAX_GAPS} gaps in its stream; numbers rise by one")
    return merged


def _merge(spans: list[tuple[int, int]]) -> Ranges:
    starts = [spans[0][0], *(right[0] for left, right in pairwise(spans) if left[1] != right[0])]
    stops = [*(left[1] for left, right in pairwise(spans) if left[1] != right[0]), spans[-1][1]]
    return tuple(zip(starts, stops, strict=True))
