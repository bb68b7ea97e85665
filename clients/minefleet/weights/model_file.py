"""A policy's state as one safetensors file, written tensor by tensor.

The `safetensors` package would hold all of them, sorts them, and is not there for everybody who runs the command line.
"""

import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from minefleet.dtypes import NUMPY_DTYPES
from minefleet.v1 import weights_pb2
from minefleet.weights.manifest import wire_bytes

METADATA = {"format": "pt"}
"""By this, other programs know that the names are those of a torch state."""

_LENGTH_BYTES = 8
_ALIGNMENT = 8


def write_model(
    path: Path, entries: Sequence[weights_pb2.TensorEntry], array_of: Callable[[weights_pb2.TensorEntry], NDArray[Any]]
) -> str:
    """Writes tensors durably, in the order of `entries`; returns the xxh3-64 of the file.

    Args:
        path: The file.
        entries: Names, dtypes and shapes.
        array_of: Returns a tensor; called once for each, when it is written.
    """
    hasher = xxhash.xxh3_64()
    with path.open("wb") as file:

        def put(data: bytes | memoryview) -> None:
            hasher.update(data)
            file.write(data)

        put(_header(entries))
        for entry in entries:
            put(wire_bytes(array_of(entry)).data)
        file.flush()
        os.fsync(file.fileno())
    return hasher.hexdigest()


def _header(entries: Sequence[weights_pb2.TensorEntry]) -> bytes:
    described: dict[str, Any] = {"__metadata__": METADATA}
    end = 0
    for entry in entries:
        dtype, start = NUMPY_DTYPES[entry.dtype], end
        end += math.prod(entry.shape) * dtype.itemsize
        described[entry.name] = {"dtype": _word(dtype), "shape": list(entry.shape), "data_offsets": [start, end]}
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def _word(dtype: np.dtype[Any]) -> str:
    """What safetensors calls an element type: F32, I64, U8, BOOL."""
    return "BOOL" if dtype.kind == "b" else f"{dtype.kind.upper()}{8 * dtype.itemsize}"
