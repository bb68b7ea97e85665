"""Writes safetensors files tensor by tensor, without holding up other threads.

`safetensors` itself builds the whole file in memory, keeps the interpreter's lock meanwhile, for seconds where the file
is large, and sorts the tensors. The format is eight bytes of header length, a JSON header, and the data:
https://huggingface.co/docs/safetensors
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

LENGTH_BYTES = 8
"""Of the length that a file begins with."""

METADATA = "__metadata__"
"""A name that the format keeps for itself."""

_ALIGNMENT = 8


class TensorRow(NamedTuple):
    """The header's entry of one tensor."""

    name: str
    dtype: str
    """The format's word, as `word_of` gives it."""
    shape: Sequence[int]
    size_bytes: int


def row_of(name: str, array: NDArray[Any]) -> TensorRow:
    """Describes an array."""
    return TensorRow(name, word_of(array.dtype), array.shape, array.nbytes)


def word_of(dtype: np.dtype[Any]) -> str:
    """The format's word for an element type: F32, I64, U8, BOOL."""
    return "BOOL" if dtype.kind == "b" else f"{dtype.kind.upper()}{8 * dtype.itemsize}"


def header_of(rows: Sequence[TensorRow], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes before the data of tensors that lie back to back in this order.

    Raises:
        ValueError: If a tensor is called `__metadata__`.
    """
    if any(row.name == METADATA for row in rows):
        raise ValueError(f"no tensor can be called {METADATA}: safetensors keeps that name for itself")
    described: dict[str, Any] = {} if metadata is None else {METADATA: dict(metadata)}
    end = 0
    for row in rows:
        start, end = end, end + row.size_bytes
        described[row.name] = {"dtype": row.dtype, "shape": list(row.shape), "data_offsets": [start, end]}
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def write_tensors(
    path: Path,
    rows: Sequence[TensorRow],
    array_of: Callable[[str], NDArray[Any]],
    metadata: Mapping[str, str] | None = None,
) -> str:
    """Writes tensors whose bytes survive power loss; the file's name survives once the directory is synced too.

    Args:
        path: The file.
        rows: The tensors, in their order.
        array_of: Returns the tensor of a name; called once for each, when it is written.
        metadata: Goes into the header.

    Returns:
        The xxh3-64 of the file, in hexadecimal digits.
    """
    hasher = xxhash.xxh3_64()
    with path.open("wb") as file:

        def put(data: bytes | memoryview) -> None:
            hasher.update(data)
            file.write(data)

        put(header_of(rows, metadata))
        for row in rows:
            array = array_of(row.name)
            little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            put(little.reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())
    return hasher.hexdigest()
