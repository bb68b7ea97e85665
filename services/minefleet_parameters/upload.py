"""One publish under way: its tensors lie aside until the store takes them over."""

import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from minefleet.errors import RejectedError, UnavailableError
from minefleet.manifest import NUMPY_DTYPES, digest_of
from minefleet.rpc import PIECE_BYTES
from minefleet.v1 import parameters_service_pb2, weights_pb2
from minefleet_parameters.files import refusing_when_full, sync
from minefleet_parameters.tensors import header_of, to_data


class Upload:
    """Receives the tensors of one publish into a directory of its own and verifies each as it becomes whole.

    Thread-safe, because a caller that hangs up leaves a thread of the server at work here.
    """

    def __init__(self, directory: Path, header: parameters_service_pb2.PublishHeader) -> None:
        self.header = header
        self.received_bytes = 0
        self._directory = directory
        self._lock = threading.Lock()
        self._closed = False
        self._whole: dict[str, Path] = {}
        self._filled: dict[str, int] = {}
        self._entries = {entry.digest: entry for entry in header.manifest.tensors}

    def start(self) -> None:
        """Makes the directory, and the tensors that have no bytes to wait for."""
        with self._lock, refusing_when_full():
            self._check_open()
            self._directory.mkdir()
            for entry in self._entries.values():
                if entry.size_bytes == 0:
                    self._append(entry, b"")

    def write(self, piece: weights_pb2.TensorPiece) -> None:
        """Takes the next piece of a tensor.

        Raises:
            RejectedError: If it is not the next piece, or completes a tensor that is not what the manifest says.
            OverloadedError: If the disk is full.
        """
        data = piece.data
        with self._lock, refusing_when_full():
            self._check_open()
            self._append(self._expected(piece, len(data)), data)

    @contextmanager
    def handing_over(self) -> Iterator[Mapping[str, Path]]:
        """Yields the files of the whole tensors by digest, verified and durable; `close` waits for the end."""
        with self._lock:
            self._check_open()
            yield self._whole

    def close(self) -> None:
        """Removes what was not handed over."""
        with self._lock:
            self._closed = True
            shutil.rmtree(self._directory, ignore_errors=True)

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the publish was abandoned")

    def _expected(self, piece: weights_pb2.TensorPiece, length: int) -> weights_pb2.TensorEntry:
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

    def _append(self, entry: weights_pb2.TensorEntry, data: bytes) -> None:
        path = self._directory / entry.digest
        filled = self._filled.get(entry.digest, 0)
        with path.open("ab") as file:
            if filled == 0:
                file.write(header_of(entry))
            file.write(data)
        self._filled[entry.digest] = filled + len(data)
        self.received_bytes += len(data)
        if filled + len(data) == entry.size_bytes:
            _verify(entry, _map(path, entry.size_bytes))
            sync(path)
            self._whole[entry.digest] = path


def _map(path: Path, size_bytes: int) -> NDArray[np.uint8]:
    if size_bytes == 0:
        return np.empty(0, np.uint8)
    with path.open("rb") as file:
        return np.memmap(file, np.uint8, "r", to_data(file), (size_bytes,))


def _verify(entry: weights_pb2.TensorEntry, data: NDArray[np.uint8]) -> None:
    if digest_of(data) != entry.digest:
        raise RejectedError(f"tensor {entry.name!r} does not match its digest {entry.digest}")
    dtype = NUMPY_DTYPES[entry.dtype]
    if dtype.kind == "f" and not np.isfinite(data.view(dtype)).all():
        raise RejectedError(f"tensor {entry.name!r} holds NaN or infinity")
