"""One publish under way: its tensors lie aside until the store takes them over."""

import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from minefleet.core.atomic_files import sync
from minefleet.core.errors import RejectedError, UnavailableError
from minefleet.rpc.message_pieces import PIECE_BYTES
from minefleet.rpc.weights.manifest import is_finite
from minefleet.rpc.weights.tensor_message_serializer import AnyPiece
from minefleet.v1 import parameters_service_pb2, weights_pb2
from minefleet_parameters.tensor_files import Checksums, Whole, header_of, to_data
from minefleet_runtime.retryable_resource_errors import overloaded_when_full

DISK_FULL_RETRY_S = 5.0
"""Time after which a publish that found no room is to be tried again."""


class WeightsUpload:
    """Receives the tensors of one publish, in files whose names begin with `prefix`.

    Each is verified and made durable by `pool` while others arrive; many at once cost hardly more than one.
    Thread-safe, because a caller that hangs up leaves a thread of the server at work here.
    """

    def __init__(self, prefix: Path, header: parameters_service_pb2.PublishHeader, pool: Executor) -> None:
        self.header = header
        self.received_bytes = 0
        self._prefix = prefix
        self._pool = pool
        self._lock = threading.Lock()
        self._closed = False
        self._filled: dict[str, int] = {}
        self._finishing: dict[str, Future[Whole]] = {}
        self._entries = {entry.digest: entry for entry in header.manifest.tensors}

    def start(self) -> None:
        """Makes the tensors that have no bytes to wait for."""
        with self._lock, overloaded_when_full(DISK_FULL_RETRY_S):
            self._check_open()
            for entry in self._entries.values():
                if entry.size_bytes == 0:
                    self._append(entry, b"")

    def write(self, pieces: Iterable[AnyPiece]) -> None:
        """Takes the next pieces.

        Raises:
            RejectedError: If one is not the next piece of its tensor.
            OverloadedError: If the disk is full.
        """
        with self._lock, overloaded_when_full(DISK_FULL_RETRY_S):
            self._check_open()
            for piece in pieces:
                data = piece.data
                self._append(self._expected(piece, len(data)), data)

    @contextmanager
    def handing_over(self) -> Iterator[Mapping[str, Whole]]:
        """Yields the whole tensors by digest; `close` waits for the end.

        Raises:
            RejectedError: If a tensor is not what the manifest says, or not finite.
            OverloadedError: If the disk is full.
        """
        with self._lock:
            self._check_open()
            with overloaded_when_full(DISK_FULL_RETRY_S):
                whole = {digest: finishing.result() for digest, finishing in self._finishing.items()}
            yield whole

    def close(self) -> None:
        """Removes what was not handed over."""
        with self._lock:
            self._closed = True
            for digest in self._filled:
                self._path(digest).unlink(missing_ok=True)

    def _path(self, digest: str) -> Path:
        return self._prefix.with_name(f"{self._prefix.name}-{digest}")

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the publish was abandoned")

    def _expected(self, piece: AnyPiece, length: int) -> weights_pb2.TensorEntry:
        entry, filled = self._entries.get(piece.digest), self._filled.get(piece.digest, 0)
        if entry is None:
            raise RejectedError(f"no tensor of the manifest has the digest {piece.digest[:32]!r}")
        if not 1 <= length <= PIECE_BYTES:
            raise RejectedError(f"a piece has 1 to {PIECE_BYTES} bytes, got {length}")
        if piece.offset != filled or filled + length > entry.size_bytes:
            raise RejectedError(
                f"tensor {entry.name!r} of {entry.size_bytes} bytes goes on at {filled}, "
                f"got {length} bytes for {piece.offset}"
            )
        return entry

    def _append(self, entry: weights_pb2.TensorEntry, data: bytes | memoryview) -> None:
        path = self._path(entry.digest)
        filled = self._filled.setdefault(entry.digest, 0)
        with path.open("ab") as file:
            if filled == 0:
                file.write(header_of(entry))
            file.write(data)
        self._filled[entry.digest] = filled + len(data)
        self.received_bytes += len(data)
        if filled + len(data) == entry.size_bytes:
            self._finishing[entry.digest] = self._pool.submit(_finish, path, entry)


def _finish(path: Path, entry: weights_pb2.TensorEntry) -> Whole:
    checksums = _verify(entry, _map(path, entry.size_bytes))
    sync(path)
    return Whole(path, checksums)


def _map(path: Path, size_bytes: int) -> NDArray[np.uint8]:
    if size_bytes == 0:
        return np.empty(0, np.uint8)
    with path.open("rb") as file:
        return np.memmap(file, np.uint8, "r", to_data(file), (size_bytes,))


def _verify(entry: weights_pb2.TensorEntry, data: NDArray[np.uint8]) -> Checksums:
    """Checks one piece after the other, so that each is in the processor's cache for all checks."""
    hasher, checksums, finite = xxhash.xxh3_128(), list[int](), True
    for start in range(0, len(data), PIECE_BYTES):
        part = data[start : start + PIECE_BYTES]
        hasher.update(part.data)
        checksums.append(xxhash.xxh3_64_intdigest(part.data))
        finite = finite and is_finite(entry, part)
    if hasher.hexdigest() != entry.digest:
        raise RejectedError(f"tensor {entry.name!r} does not match its digest {entry.digest}")
    if not finite:
        raise RejectedError(f"tensor {entry.name!r} holds NaN or infinity")
    return tuple(checksums)
