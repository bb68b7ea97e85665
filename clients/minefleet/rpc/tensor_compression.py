"""Packs one tensor for its way: halves the floats of a recurrent state where asked to, and compresses without loss."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import cramjam
import lz4.frame
import numpy as np
from numpy.typing import NDArray

from minefleet.core.errors import RejectedError
from minefleet.core.protobuf_dtypes import NUMPY_DTYPES, dtype_number
from minefleet.rpc.weights.bfloat16 import from_bfloat16, to_bfloat16
from minefleet.v1 import tensor_pb2

LZ4_LEVEL = -4
"""Below 0 is faster: by a sixth, for a twentieth more bytes of Crafter frames."""
Buffer = Any
"""Bytes, or what can be joined with them."""
DTYPES = NUMPY_DTYPES | {tensor_pb2.DTYPE_BFLOAT16: np.dtype("<u2")}
"""Element types on the wire; NumPy has no bfloat16, which is the upper half of a float32."""
STATE = "recurrent_state"
ZSTD_LEVEL = 1
PROBE_BYTES = 2**13
"""Size of the piece from the middle of an array that shows how well it packs."""


class Packing(NamedTuple):
    """A way to pack an array, and when that is worth it."""

    codec: tensor_pb2.Codec.ValueType
    worthwhile: float = 0.9
    """Packed size over raw size below which packing is worth its time."""
    probed_bytes: int = 2**20
    """An array from this size on is packed only if a piece of it is worth it."""


AS_IT_IS = Packing(tensor_pb2.CODEC_NONE)
PACKINGS = {
    "none": AS_IT_IS,
    "zstd": Packing(tensor_pb2.CODEC_ZSTD),
    "lz4": Packing(tensor_pb2.CODEC_LZ4),
    "halving": Packing(tensor_pb2.CODEC_ZSTD, worthwhile=0.5, probed_bytes=2 * PROBE_BYTES),
}


def raw_bytes_of(spec: tensor_pb2.TensorSpec) -> int:
    """The size of an array before packing.

    Raises:
        RejectedError: If its dtype is unknown or its shape is impossible.
    """
    dtype, shape = DTYPES.get(spec.dtype), spec.shape
    if dtype is None or min(shape, default=0) < 0:
        raise RejectedError(f"tensor {spec.name} has dtype {spec.dtype} and shape {list(shape)}")
    return math.prod(shape) * dtype.itemsize


def pack(
    array: NDArray[np.generic], dtype: tensor_pb2.Dtype.ValueType, packing: Packing
) -> tuple[tensor_pb2.Codec.ValueType, Buffer]:
    """Packs an array, or leaves it as it is where packing is not worth it. Returns the codec, too."""
    if packing.codec == tensor_pb2.CODEC_NONE:
        return packing.codec, array.astype(DTYPES[dtype], copy=False).tobytes()
    data = np.ascontiguousarray(array, DTYPES[dtype]).reshape(-1).view(np.uint8)
    if not _is_worth_packing(data, packing):
        return tensor_pb2.CODEC_NONE, data.data
    return packing.codec, _squeeze(data, packing.codec)


def pack_bytes(
    arrays: Sequence[NDArray[np.generic]], packing: Packing
) -> tuple[tensor_pb2.Codec.ValueType, list[bytes]]:
    """Packs arrays by one codec, or leaves them as they are where packing the largest is not worth it."""
    data = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
    if packing.codec == tensor_pb2.CODEC_NONE or not _is_worth_packing(max(data, key=len), packing):
        return tensor_pb2.CODEC_NONE, [part.tobytes() for part in data]
    return packing.codec, [bytes(_squeeze(part, packing.codec)) for part in data]


def _is_worth_packing(data: NDArray[np.uint8], packing: Packing) -> bool:
    middle = len(data) // 2
    probe = data[middle : middle + PROBE_BYTES]
    return len(data) < packing.probed_bytes or len(_squeeze(probe, packing.codec)) < packing.worthwhile * len(probe)


def _squeeze(data: NDArray[np.uint8], codec: tensor_pb2.Codec.ValueType) -> Buffer:
    if codec == tensor_pb2.CODEC_LZ4:
        return bytes(lz4.frame.compress(data, compression_level=LZ4_LEVEL))
    return cramjam.zstd.compress(data.data, level=ZSTD_LEVEL)


def unpack(spec: tensor_pb2.TensorSpec, part: memoryview, raw_bytes: int) -> NDArray[np.generic]:
    """The array that was packed. Raises what `unpack_bytes` does."""
    data = unpack_bytes(spec.name, spec.codec, part, raw_bytes)
    return _widened(spec, np.frombuffer(data, DTYPES[spec.dtype]).reshape(tuple(spec.shape)))


def unpack_bytes(name: str, codec: tensor_pb2.Codec.ValueType, part: Buffer, raw_bytes: int) -> Buffer:
    """The bytes that were packed.

    Raises:
        RejectedError: If there are other than `raw_bytes` of them, or none of this codec.
    """
    data: Any
    if codec == tensor_pb2.CODEC_ZSTD:
        data = _inflate(name, part, raw_bytes)
    elif codec == tensor_pb2.CODEC_LZ4:
        try:
            data = lz4.frame.LZ4FrameDecompressor().decompress(part, max_length=raw_bytes + 1)
        except RuntimeError as error:
            raise RejectedError(f"tensor {name} is no LZ4 frame: {error}") from error
    elif codec == tensor_pb2.CODEC_NONE:
        data = part
    else:
        raise RejectedError(f"tensor {name} has the unknown codec {codec}")
    if len(data) != raw_bytes:
        raise RejectedError(f"tensor {name} holds {len(data)} bytes, its shape needs {raw_bytes}")
    return data


def _inflate(name: str, part: Buffer, raw_bytes: int) -> NDArray[np.uint8]:
    """Unpacks a zstd frame into an array of the size that is expected, which no frame can exceed."""
    data = np.empty(raw_bytes, np.uint8)
    try:
        return data[: cramjam.zstd.decompress_into(part, data.data)]
    except cramjam.DecompressionError as error:
        raise RejectedError(f"tensor {name} is no zstd frame of {raw_bytes} bytes: {error}") from error


def narrowed(
    name: str, array: NDArray[np.generic], state_dtype: str
) -> tuple[tensor_pb2.Dtype.ValueType, NDArray[np.generic]]:
    """An array as it travels, and its element type; what no bfloat16 can say stays float32."""
    if field_of(name) != STATE or array.dtype != np.float32 or state_dtype == "float32":
        return dtype_number(name, array.dtype), array
    if state_dtype == "float16":
        return tensor_pb2.DTYPE_FLOAT16, array.astype(np.float16)
    bits = to_bfloat16(array)
    return (tensor_pb2.DTYPE_FLOAT32, array) if bits is None else (tensor_pb2.DTYPE_BFLOAT16, bits)


def _widened(spec: tensor_pb2.TensorSpec, array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Inverts `narrowed`."""
    if not is_narrow(spec):
        return array
    return from_bfloat16(array.view(np.uint16)) if spec.dtype == tensor_pb2.DTYPE_BFLOAT16 else array.astype(np.float32)


def is_narrow(spec: tensor_pb2.TensorSpec) -> bool:
    """Whether an array is float32 once it is unpacked, and has half the bytes before."""
    is_half = spec.dtype == tensor_pb2.DTYPE_FLOAT16 and field_of(spec.name) == STATE
    return is_half or spec.dtype == tensor_pb2.DTYPE_BFLOAT16


def field_of(name: str) -> str:
    """The field of a fragment that an array belongs to."""
    return name.partition("/")[0]
