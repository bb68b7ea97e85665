"""Tensors on disk, each in a safetensors file named by its digest."""

import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import xxhash

from minefleet.core import safetensors_writer
from minefleet.core.atomic_files import sync
from minefleet.core.errors import CorruptError
from minefleet.core.protobuf_dtypes import NUMPY_DTYPES
from minefleet.core.safetensors_writer import LENGTH_BYTES, TensorRow, word_of
from minefleet.rpc.message_pieces import PIECE_BYTES
from minefleet.rpc.weights.manifest import is_bfloat16
from minefleet.rpc.weights.tensor_message_serializer import Piece
from minefleet.v1 import weights_pb2

logger = logging.getLogger(__name__)

SUFFIX = ".safetensors"
MAX_HEADER_BYTES = 4096
_BFLOAT16 = "BF16"


Checksums: TypeAlias = tuple[int, ...]
"""The xxh3-64 of each `PIECE_BYTES` of a tensor; the last may be of fewer."""


class Span(NamedTuple):
    """A part of a tensor that fits into one piece."""

    digest: str
    offset: int
    size_bytes: int


class Whole(NamedTuple):
    """A tensor's file that lies aside, verified and durable."""

    path: Path
    checksums: Checksums


class TensorFiles:
    """The tensors of the kept versions. Thread-safe: one thread changes them at a time, reading takes no lock."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        # Replaced, never changed, so that readers need no lock.
        self._sizes: Mapping[str, int] = {}
        self._needed: frozenset[str] = frozenset()
        self._checksums: dict[str, Checksums] = {}
        """Of tensors that were verified as a whole, when they were published or first read."""

    @property
    def held(self) -> frozenset[str]:
        """Digests of the tensors that are there, as far as is known."""
        return frozenset(self._sizes)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the held tensors."""
        return sum(self._sizes.values())

    def recover(self, needed: Iterable[weights_pb2.TensorEntry]) -> None:
        """Finds the needed tensors. One of another size than it must have counts as lacking."""
        self._directory.mkdir(exist_ok=True)
        sizes = {entry.digest: entry.size_bytes for entry in needed}
        found = {path.stem: _data_bytes(path) for path in self._directory.iterdir()}
        for digest, size in sizes.items():
            if found.get(digest) != size:
                logger.error("tensor %s is damaged or gone; the next publish renews it", digest)
        self._sizes = {digest: size for digest, size in sizes.items() if found.get(digest) == size}
        self._needed = frozenset(sizes)

    def take_over(self, whole: Mapping[str, Whole], needed: Iterable[weights_pb2.TensorEntry]) -> None:
        """Moves files in, durably. They replace damaged ones of their name."""
        sizes = {entry.digest: entry.size_bytes for entry in needed}
        with self._lock:
            self._needed |= sizes.keys()
            for digest, tensor in whole.items():
                tensor.path.replace(self._path(digest))
            sync(self._directory)
            self._checksums.update({digest: tensor.checksums for digest, tensor in whole.items()})
            self._sizes = {**self._sizes, **{digest: sizes[digest] for digest in whole}}

    def keep(self, needed: Iterable[weights_pb2.TensorEntry]) -> None:
        """Counts all other tensors as lacking; `sweep` removes them."""
        with self._lock:
            self._needed = frozenset(entry.digest for entry in needed)
            self._sizes = {digest: size for digest, size in self._sizes.items() if digest in self._needed}
            for digest in self._checksums.keys() - self._needed:
                del self._checksums[digest]

    def purge(self) -> None:
        """Removes the tensors that are not needed."""
        with self._lock:
            names = {self._path(digest).name for digest in self._needed}
            for path in self._directory.iterdir():
                if path.name not in names:
                    path.unlink()

    def read(self, span: Span, *, wait: bool = True) -> Piece:
        """Returns a part of a tensor, verified.

        Raises:
            OSError: Without `wait`, if it would take the disk.
            CorruptError: If the file is not what it was. The tensor counts as lacking from then on.
            FileNotFoundError: If there is no such tensor.
        """
        with self._path(span.digest).open("rb", buffering=0) as file:
            try:
                return Piece(span.digest, span.offset, self._verified(file, span, wait=wait))
            except CorruptError:
                self.forget(span.digest)
                raise

    def forget(self, damaged: str) -> None:
        """Counts a tensor as lacking, by its digest."""
        logger.error("tensor %s is damaged; the next publish renews it", self._path(damaged))
        with self._lock:
            self._sizes = {digest: size for digest, size in self._sizes.items() if digest != damaged}
            self._checksums.pop(damaged, None)

    def _verified(self, file: FileIO, span: Span, *, wait: bool) -> memoryview:
        start = to_data(file)
        checksums = self._checksums.get(span.digest)
        if checksums is None:
            if not wait:
                raise BlockingIOError
            checksums = self._checksums[span.digest] = _checksums_of(file, start, span.digest)
        block, skipped = divmod(span.offset, PIECE_BYTES)
        data = np.empty(PIECE_BYTES, np.uint8)
        size_bytes = os.preadv(file.fileno(), [data.data], start + block * PIECE_BYTES, 0 if wait else os.RWF_NOWAIT)
        if block >= len(checksums) or xxhash.xxh3_64_intdigest(data[:size_bytes].data) != checksums[block]:
            if not wait:
                raise BlockingIOError
            raise CorruptError(f"tensor {span.digest} is damaged on the disk of parameters")
        return data[skipped : skipped + span.size_bytes].data

    def _path(self, digest: str) -> Path:
        return self._directory / f"{digest}{SUFFIX}"


def spans(digest: str, start: int, end: int) -> Iterator[Span]:
    """Cuts a tensor into spans, from an offset to its end; all but the first begin at multiples of `PIECE_BYTES`."""
    while start < end:
        size_bytes = min(PIECE_BYTES - start % PIECE_BYTES, end - start)
        yield Span(digest, start, size_bytes)
        start += size_bytes


def header_of(entry: weights_pb2.TensorEntry) -> bytes:
    """The bytes before the data in a file that holds one tensor under its digest."""
    dtype = _BFLOAT16 if is_bfloat16(entry) else word_of(NUMPY_DTYPES[entry.dtype])
    return safetensors_writer.header_of([TensorRow(entry.digest, dtype, entry.shape, entry.size_bytes)])


class SeekableFile(Protocol):
    """A file that is open for reading, buffered or not."""

    def read(self, size: int, /) -> bytes | None:
        """Reads at most so many bytes."""

    def seek(self, offset: int, /) -> int:
        """Moves to an offset and returns it."""


def to_data(file: SeekableFile) -> int:
    """Moves a file to the start of its data and returns where that is.

    Raises:
        CorruptError: If the file cannot be one of ours.
    """
    header_bytes = int.from_bytes(file.read(LENGTH_BYTES) or b"", "little")
    if header_bytes > MAX_HEADER_BYTES:
        raise CorruptError("a tensor's file has a damaged header")
    return file.seek(LENGTH_BYTES + header_bytes)


def _data_bytes(path: Path) -> int:
    with path.open("rb") as file:
        try:
            return os.fstat(file.fileno()).st_size - to_data(file)
        except CorruptError:
            return -1


def _checksums_of(file: FileIO, start: int, digest: str) -> Checksums:
    hasher, checksums = xxhash.xxh3_128(), list[int]()
    while data := os.pread(file.fileno(), PIECE_BYTES, start + len(checksums) * PIECE_BYTES):
        hasher.update(data)
        checksums.append(xxhash.xxh3_64_intdigest(data))
    if hasher.hexdigest() != digest:
        raise CorruptError(f"tensor {digest} is damaged on the disk of parameters")
    return tuple(checksums)
