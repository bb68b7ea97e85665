"""The element types of the wire, and what NumPy calls them."""

from typing import Any

import numpy as np

from minefleet.core.errors import RejectedError
from minefleet.v1 import tensor_pb2

NUMPY_DTYPES: dict[tensor_pb2.Dtype.ValueType, np.dtype[Any]] = {
    tensor_pb2.DTYPE_BOOL: np.dtype("|b1"),
    tensor_pb2.DTYPE_UINT8: np.dtype("|u1"),
    tensor_pb2.DTYPE_INT8: np.dtype("|i1"),
    tensor_pb2.DTYPE_UINT16: np.dtype("<u2"),
    tensor_pb2.DTYPE_INT16: np.dtype("<i2"),
    tensor_pb2.DTYPE_UINT32: np.dtype("<u4"),
    tensor_pb2.DTYPE_INT32: np.dtype("<i4"),
    tensor_pb2.DTYPE_UINT64: np.dtype("<u8"),
    tensor_pb2.DTYPE_INT64: np.dtype("<i8"),
    tensor_pb2.DTYPE_FLOAT16: np.dtype("<f2"),
    tensor_pb2.DTYPE_FLOAT32: np.dtype("<f4"),
    tensor_pb2.DTYPE_FLOAT64: np.dtype("<f8"),
}
_NUMBERS = {ordered: number for number, dtype in NUMPY_DTYPES.items() for ordered in (dtype, dtype.newbyteorder(">"))}


def dtype_number(name: str, dtype: np.dtype[Any]) -> tensor_pb2.Dtype.ValueType:
    """The wire's number for an element type, whatever its byte order.

    Raises:
        RejectedError: If there is none; names the array.
    """
    number = _NUMBERS.get(dtype)
    if number is None:
        raise RejectedError(f"{name} has dtype {dtype}, which has no wire type")
    return number
