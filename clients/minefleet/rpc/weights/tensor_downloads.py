"""Tensors on their way here, by digest.

Whole ones are kept for the next version; cut ones go on where they were cut.
"""

from dataclasses import dataclass, field

import numpy as np
import xxhash
from numpy.typing import NDArray

from minefleet.core.errors import CorruptError
from minefleet.rpc.weights.tensor_message_serializer import AnyPiece
from minefleet.v1 import parameters_service_pb2, weights_pb2

Bytes = NDArray[np.uint8]


@dataclass(slots=True)
class _Partial:
    """A tensor as far as it has come. It is hashed piece by piece, while the bytes are in the processor's cache."""

    data: Bytes
    filled: int = 0
    hasher: xxhash.xxh3_128 = field(default_factory=xxhash.xxh3_128)

    def append(self, data: Bytes) -> None:
        self.data[self.filled : self.filled + len(data)] = data
        self.filled += len(data)
        self.hasher.update(data.data)


class Downloads:
    """The tensors of the last version, and those of the next as far as they have come. Not thread-safe."""

    def __init__(self) -> None:
        self._whole: dict[str, Bytes] = {}
        self._partial: dict[str, _Partial] = {}

    def __getitem__(self, digest: str) -> Bytes:
        """A whole tensor's bytes, read-only."""
        return self._whole[digest]

    def want(self, manifest: weights_pb2.Manifest) -> list[parameters_service_pb2.TensorRange]:
        """Returns what is still to be fetched of a version, and forgets what was begun for others."""
        lacking = {entry.digest: entry for entry in manifest.tensors if entry.digest not in self._whole}
        begun = self._partial
        self._partial = {
            digest: begun.get(digest) or _Partial(np.empty(entry.size_bytes, np.uint8))
            for digest, entry in lacking.items()
        }
        for digest in lacking:
            self._finish_if_whole(digest)
        return [
            parameters_service_pb2.TensorRange(digest=digest, offset=partial.filled)
            for digest, partial in self._partial.items()
        ]

    def add(self, piece: AnyPiece) -> None:
        """Takes the next piece of a wanted tensor.

        Raises:
            CorruptError: If it is not that, or completes a tensor that does not match its digest; what was fetched of
                the tensor is forgotten.
        """
        partial, data = self._partial.get(piece.digest), np.frombuffer(piece.data, np.uint8)
        if partial is None or piece.offset != partial.filled or partial.filled + len(data) > len(partial.data):
            raise CorruptError(f"parameters sent a piece of tensor {piece.digest} that does not fit: {piece.offset}")
        partial.append(data)
        self._finish_if_whole(piece.digest)

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
        partial = self._partial[digest]
        if partial.filled < len(partial.data):
            return
        del self._partial[digest]
        if partial.hasher.hexdigest() != digest:
            raise CorruptError(f"a tensor arrived that does not match its digest {digest}")
        partial.data.flags.writeable = False
        self._whole[digest] = partial.data
