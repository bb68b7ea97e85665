"""Checks the arrays of a fragment: they are stored as they come, but what would stop the learner stays out.

Compressed arrays are not unpacked, so observations are taken as they are.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minefleet.core.errors import RejectedError
from minefleet.rpc.message_pieces import Piece
from minefleet.v1 import fragment_pb2, tensor_pb2

FINITE = frozenset({"reward", "behaviour_logp", "behaviour_value", "next_value"})
CODECS = frozenset({tensor_pb2.CODEC_NONE, tensor_pb2.CODEC_ZSTD, tensor_pb2.CODEC_LZ4})
DTYPES = {
    **dict.fromkeys(FINITE, tensor_pb2.DTYPE_FLOAT32),
    **dict.fromkeys(("terminated", "truncated", "first", "crash"), tensor_pb2.DTYPE_BOOL),
    **dict.fromkeys(("policy_version", "duration"), tensor_pb2.DTYPE_UINT32),
}
"""Arrays with one value per step."""


def check_shapes(header: fragment_pb2.FragmentHeader, sizes: Sequence[int]) -> None:
    """Rejects arrays that are not as long as the fragment says, or of another type than they must be.

    Args:
        header: Of the fragment.
        sizes: Bytes of each array before packing.
    """
    length = header.length
    for spec, raw_bytes in zip(header.tensors, sizes, strict=True):
        if not _fits(spec, length, raw_bytes):
            raise RejectedError(
                f"tensor {spec.name} of {header.length} steps has shape {list(spec.shape)}, dtype {spec.dtype}, codec "
                f"{spec.codec} and {spec.packed_bytes} bytes"
            )


def _fits(spec: tensor_pb2.TensorSpec, length: int, raw_bytes: int) -> bool:
    name, shape, codec = spec.name, spec.shape, spec.codec
    if name in DTYPES:
        if codec != tensor_pb2.CODEC_NONE or spec.dtype != DTYPES[name] or len(shape) != 1 or shape[0] != length:
            return False
    elif name.startswith(("obs", "action")) and (not shape or shape[0] != length):
        return False
    return spec.packed_bytes == raw_bytes if codec == tensor_pb2.CODEC_NONE else codec in CODECS


def check_finite(header: fragment_pb2.FragmentHeader, pieces: Sequence[Piece], piece_bytes: int) -> None:
    """Rejects rewards, log-probabilities and values that are not finite.

    Args:
        header: Of the fragment, checked.
        pieces: Its payload.
        piece_bytes: Size of each but the last.
    """
    start = 0
    for spec in header.tensors:
        stop = start + spec.packed_bytes
        if spec.name in FINITE and not np.isfinite(_values(pieces, piece_bytes, start, stop)).all():
            name = header.name
            raise RejectedError(f"{spec.name} of {name.stream}/{name.sequence} holds values that are not finite")
        start = stop


def _values(pieces: Sequence[Piece], piece_bytes: int, start: int, stop: int) -> NDArray[np.float32]:
    first, last = start // piece_bytes, (stop - 1) // piece_bytes
    held = pieces[first] if first == last else b"".join(pieces[first : last + 1])
    return np.frombuffer(held, "<f4", (stop - start) // 4, start - first * piece_bytes)
