"""Writes safetensors files without holding up other threads.

`safetensors` itself builds the whole file in memory and keeps the interpreter's lock meanwhile, for seconds where the
file is large. The format is eight bytes of header length, a JSON header, and the data:
https://huggingface.co/docs/safetensors
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DTYPES = {"float": "F", "int": "I", "uint": "U", "bool": "BOOL"}
_ALIGNMENT = 8


def write_tensors(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Writes arrays whose bytes survive power loss; the file's name survives once the directory is synced too."""
    # In alphabetical order of their names, largest elements first, so that each array is aligned: as safetensors does.
    ordered = sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0]))
    header = _header([(name, np.asarray(array)) for name, array in ordered])
    with path.open("wb") as file:
        file.write(header)
        for _, array in ordered:
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())


def _header(ordered: list[tuple[str, NDArray[Any]]]) -> bytes:
    entries, start = {}, 0
    for name, array in ordered:
        end = start + array.nbytes
        entries[name] = {"dtype": _dtype(array.dtype), "shape": array.shape, "data_offsets": (start, end)}
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _dtype(dtype: np.dtype[Any]) -> str:
    """The format's word: F32, I64, U8, BOOL."""
    kind = dtype.name.rstrip("0123456789")
    return _DTYPES[kind] + ("" if kind == "bool" else str(8 * dtype.itemsize))
