"""Tensors on their way here, by digest.

Whole ones are kept for the next version; cut ones go on where they were cut.
"""

import numpy as np
from numpy.typing import NDArray

from minefleet.errors import CorruptError
from minefleet.v1 import parameters_service_pb2, weights_pb2
from minefleet.weights.manifest import digest_of

Bytes = NDArray[np.uint8]


class Downloads:
    """The tensors of the last version, and those of the next as far as they have come. Not thread-safe."""

    def __init__(self) -> None:
        self._whole: dict[str, Bytes] = {}
        self._partial: dict[str, Bytes] = {}
        self._filled: dict[str, int] = {}

    def __getitem__(self, digest: str) -> Bytes:
        """A whole tensor's bytes, read-only."""
        return self._whole[digest]

    def want(self, manifest: weights_pb2.Manifest) -> list[parameters_service_pb2.TensorRange]:
        """Returns what is still to be fetched of a version, and forgets what was begun for others."""
        lacking = {entry.digest: entry for entry in manifest.tensors if entry.digest not in self._whole}
        self._partial = {digest: data for digest, data in self._partial.items() if digest in lacking}
        self._filled = {digest: self._filled.get(digest, 0) for digest in lacking}
        for digest, entry in lacking.items():
            if digest not in self._partial:
                self._partial[digest] = np.empty(entry.size_bytes, np.uint8)
                self._finish_if_whole(digest)
        return [
            parameters_service_pb2.TensorRange(digest=digest, offset=filled) for digest, filled in self._filled.items()
        ]

    def add(self, piece: weights_pb2.TensorPiece) -> None:
        """Takes the next piece of a wanted tensor.

        Raises:
            CorruptError: If it is not that, or completes a tensor that does not match its digest; what was fetched of
                the tensor is forgotten.
        """
        digest, data = piece.digest, np.frombuffer(piece.data, np.uint8)
        start = self._filled.get(digest, -1)
        if piece.offset != start or start + len(data) > len(self._partial[digest]):
            raise CorruptError(f"parameters sent a piece of tensor {digest} that does not fit: {piece.offset}")
        self._partial[digest][start : start + len(data)] = data
        self._filled[digest] += len(data)
        self._finish_if_whole(digest)

    def check_whole(self, manifest: weights_pb2.Manifest) -> None:
        """Refuses to go on while tensors of the version are lacking.

        Raises:
            CorruptError: If parameters ended its stream too early.
        """
        lacking = [entry.name for entry in manifest.tensors if entry.digest not in self._whole]
        if lacking:
            raise CorruptError(f"parameters left out {len(lacking)} tensors, {lacking[0]!r} for one")

    def keep(self, manifest: weights_pb2.Manifest) -> None:
        """Forgets the tensors of other versions."""
        digests = {entry.digest for entry in manifest.tensors}
        self._whole = {digest: data for digest, data in self._whole.items() if digest in digests}

    def _finish_if_whole(self, digest: str) -> None:
        if self._filled[digest] < len(self._partial[digest]):
            return
        data = self._partial.pop(digest)
        del self._filled[digest]
        if digest_of(data) != digest:
            raise CorruptError(f"a tensor arrived that does not match its digest {digest}")
        data.flags.writeable = False
        self._whole[digest] = data
