"""Tensors on disk, each in a safetensors file named by its digest.

A safetensors file is eight bytes of header length, a JSON header, and the data:
https://huggingface.co/docs/safetensors
"""

import json
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import xxhash

from minefleet.errors import CorruptError
from minefleet.files import sync
from minefleet.rpc import PIECE_BYTES
from minefleet.v1 import tensor_pb2, weights_pb2

logger = logging.getLogger(__name__)

SUFFIX = ".safetensors"
MAX_HEADER_BYTES = 4096
_ALIGNMENT = 8
_LENGTH_BYTES = 8
_SAFETENSORS_DTYPES: dict[tensor_pb2.Dtype.ValueType, str] = {
    tensor_pb2.DTYPE_BOOL: "BOOL",
    tensor_pb2.DTYPE_UINT8: "U8",
    tensor_pb2.DTYPE_INT8: "I8",
    tensor_pb2.DTYPE_UINT16: "U16",
    tensor_pb2.DTYPE_INT16: "I16",
    tensor_pb2.DTYPE_UINT32: "U32",
    tensor_pb2.DTYPE_INT32: "I32",
    tensor_pb2.DTYPE_UINT64: "U64",
    tensor_pb2.DTYPE_INT64: "I64",
    tensor_pb2.DTYPE_FLOAT16: "F16",
    tensor_pb2.DTYPE_BFLOAT16: "BF16",
    tensor_pb2.DTYPE_FLOAT32: "F32",
    tensor_pb2.DTYPE_FLOAT64: "F64",
}


class TensorFiles:
    """The tensors of the kept versions. Thread-safe: one thread changes them at a time, reading takes no lock."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        # Replaced, never changed, so that readers need no lock.
        self._sizes: Mapping[str, int] = {}
        self._needed: frozenset[str] = frozenset()

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

    def take_over(self, whole: Mapping[str, Path], needed: Iterable[weights_pb2.TensorEntry]) -> None:
        """Moves files in, durably. They replace damaged ones of their name."""
        sizes = {entry.digest: entry.size_bytes for entry in needed}
        with self._lock:
            self._needed |= sizes.keys()
            for digest, path in whole.items():
                path.replace(self._path(digest))
            sync(self._directory)
            self._sizes = {**self._sizes, **{digest: sizes[digest] for digest in whole}}

    def keep(self, needed: Iterable[weights_pb2.TensorEntry]) -> None:
        """Counts all other tensors as lacking; `sweep` removes them."""
        with self._lock:
            self._needed = frozenset(entry.digest for entry in needed)
            self._sizes = {digest: size for digest, size in self._sizes.items() if digest in self._needed}

    def sweep(self) -> None:
        """Removes the tensors that are not needed."""
        with self._lock:
            names = {self._path(digest).name for digest in self._needed}
            for path in self._directory.iterdir():
                if path.name not in names:
                    path.unlink()

    def read(self, entry: weights_pb2.TensorEntry, offset: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yields a tensor's bytes from an offset on, as (offset, piece).

        The last piece comes only when the whole has matched its digest, whatever the offset.

        Raises:
            CorruptError: If the file is not what it was. The tensor counts as lacking from then on.
            FileNotFoundError: If there is no such tensor.
        """
        path = self._path(entry.digest)
        try:
            with path.open("rb") as file:
                yield from _verified_pieces(file, entry, offset)
        except CorruptError:
            logger.error("tensor %s is damaged in %s; the next publish renews it", entry.name, path)
            self.forget(entry.digest)
            raise

    def forget(self, lost: str) -> None:
        """Counts a tensor as lacking, so that the next publish that has it renews it."""
        with self._lock:
            self._sizes = {digest: size for digest, size in self._sizes.items() if digest != lost}

    def _path(self, digest: str) -> Path:
        return self._directory / f"{digest}{SUFFIX}"


def header_of(entry: weights_pb2.TensorEntry) -> bytes:
    """What precedes the data in a file that holds one tensor under its digest."""
    described = {
        "dtype": _SAFETENSORS_DTYPES[entry.wire_dtype or entry.dtype],
        "shape": list(entry.shape),
        "data_offsets": [0, entry.size_bytes],
    }
    text = json.dumps({entry.digest: described}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def to_data(file: BinaryIO) -> int:
    """Moves a file to the start of its data and returns where that is.

    Raises:
        CorruptError: If the file cannot be one of ours.
    """
    header_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if header_bytes > MAX_HEADER_BYTES:
        raise CorruptError("a tensor's file has a damaged header")
    return file.seek(_LENGTH_BYTES + header_bytes)


def _data_bytes(path: Path) -> int:
    with path.open("rb") as file:
        try:
            return os.fstat(file.fileno()).st_size - to_data(file)
        except CorruptError:
            return -1


def _verified_pieces(file: BinaryIO, entry: weights_pb2.TensorEntry, offset: int) -> Iterator[tuple[int, bytes]]:
    hasher, position = xxhash.xxh3_128(), 0
    to_data(file)
    while position < entry.size_bytes:
        data = file.read(min(PIECE_BYTES, entry.size_bytes - position))
        hasher.update(data)
        end = position + len(data)
        if not data or (end == entry.size_bytes and hasher.hexdigest() != entry.digest):
            raise CorruptError(f"tensor {entry.name!r} does not match its digest on the disk of parameters")
        if end > offset:
            first = max(position, offset)
            yield first, data[first - position :]
        position = end
