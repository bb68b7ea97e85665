"""Weights as a manifest: names, dtypes, shapes and digests of tensors; and the checks that both ends make of one.

The digest is xxh3-128: it runs at the speed of memory, and guards against faults, not against forgers.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from minefleet.core.errors import ContractError, RejectedError
from minefleet.core.protobuf_dtypes import NUMPY_DTYPES, dtype_number
from minefleet.rpc.weights.bfloat16 import all_finite, from_bfloat16, to_bfloat16
from minefleet.v1 import tensor_pb2, weights_pb2

Weights: TypeAlias = Mapping[str, NDArray[Any]]
"""Name to array, in the policy's order."""

Architecture: TypeAlias = Mapping[str, tuple[str, Sequence[int]]]
"""Name to (dtype, shape), in the policy's order; dtypes as NumPy and torch name them."""

NO_ARCHITECTURE: Architecture = MappingProxyType({})

MAX_TENSORS = 100_000
MAX_NAME_LENGTH = 500

_DIGEST = re.compile(r"[0-9a-f]{32}")


def digest_of(data: NDArray[np.uint8]) -> str:
    """Returns the xxh3-128 of some bytes as 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data.data)


def wire_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Returns an array's little-endian bytes in C order; copies only what is laid out otherwise."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)


def from_wire(entry: weights_pb2.TensorEntry, data: NDArray[np.uint8]) -> NDArray[Any]:
    """Returns a tensor as the policy takes it: a view of its bytes, or what they hold as bfloat16, read-only."""
    if not is_bfloat16(entry):
        return data.view(NUMPY_DTYPES[entry.dtype]).reshape(tuple(entry.shape))
    array = from_bfloat16(data.view(np.uint16)).reshape(tuple(entry.shape))
    array.flags.writeable = False
    return array


def is_bfloat16(entry: weights_pb2.TensorEntry) -> bool:
    """Whether a tensor's bytes are bfloat16; otherwise they are of its dtype."""
    return entry.wire_dtype == tensor_pb2.DTYPE_BFLOAT16


def is_finite(entry: weights_pb2.TensorEntry, data: NDArray[np.uint8]) -> bool:
    """Whether a tensor's bytes hold neither NaN nor infinity."""
    if is_bfloat16(entry):
        return all_finite(data.view(np.uint16))
    dtype = NUMPY_DTYPES[entry.dtype]
    return dtype.kind != "f" or bool(np.isfinite(data.view(dtype)).all())


def describe(
    weights: Weights, *, iteration: int = 0, promoted: int = 0, rounded: Collection[str] = (), settings: str = ""
) -> tuple[weights_pb2.Manifest, dict[str, NDArray[np.uint8]]]:
    """Returns the manifest of some weights, and their bytes by digest.

    Args:
        weights: The policy's.
        iteration: Training iterations done.
        promoted: The newest version that all slots may act by; 0 for this one.
        rounded: Names of float32 tensors that travel as bfloat16; one that has no finite bfloat16 stays as it is.
        settings: Live settings of the iteration that starts from them, JSON; empty for none.

    Raises:
        RejectedError: If an array's dtype has no wire type.
    """
    manifest = weights_pb2.Manifest(iteration=iteration, promoted=promoted, settings=settings)
    parts: dict[str, NDArray[np.uint8]] = {}
    for name, array in weights.items():
        bits = to_bfloat16(array) if name in rounded else None
        data = wire_bytes(array if bits is None else bits)
        digest = digest_of(data)
        parts[digest] = data
        manifest.tensors.add(
            name=name,
            dtype=dtype_number(name, array.dtype),
            shape=array.shape,
            digest=digest,
            size_bytes=data.nbytes,
            wire_dtype=None if bits is None else tensor_pb2.DTYPE_BFLOAT16,
        )
    manifest.architecture_fingerprint = _fingerprint(manifest)
    return manifest, parts


def architecture_fingerprint(tensors: Iterable[tuple[str, str, Sequence[int]]]) -> str:
    """Equal for equal names, dtypes (as NumPy and torch name them) and shapes in equal order, whatever the machine."""
    rows = [[name, dtype, list(shape)] for name, dtype, shape in tensors]
    return xxhash.xxh3_64_hexdigest(json.dumps(rows, separators=(",", ":")).encode())


def check_architecture(held: Iterable[weights_pb2.TensorEntry], offered: Iterable[weights_pb2.TensorEntry]) -> None:
    """Refuses weights of another architecture: other names, dtypes or shapes, or another order.

    Raises:
        ContractError: Names the tensors that differ.
    """
    before, after = _architecture(held), _architecture(offered)
    if list(before.items()) == list(after.items()):
        return
    lines = [
        f"{name} is {before.get(name, 'missing')} in the run and {after.get(name, 'missing')} here"
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
    ] or ["the same tensors come in another order"]
    more = f"; and {len(lines) - 5} more" if len(lines) > 5 else ""
    raise ContractError(f"the policy's architecture differs: {'; '.join(lines[:5])}{more}")


def entries_of(architecture: Architecture) -> list[weights_pb2.TensorEntry]:
    """An architecture as `check_architecture` compares it."""
    return [
        weights_pb2.TensorEntry(name=name, dtype=dtype_number(name, np.dtype(dtype)), shape=shape)
        for name, (dtype, shape) in architecture.items()
    ]


def fingerprint_of(architecture: Architecture) -> str:
    """An architecture's fingerprint, as manifests carry it."""
    return architecture_fingerprint((name, dtype, shape) for name, (dtype, shape) in architecture.items())


def info_of(version: weights_pb2.Version, *, pinned: bool = False) -> weights_pb2.VersionInfo:
    """A version without its tensors."""
    return weights_pb2.VersionInfo(
        version=version.version,
        epoch=version.epoch,
        run_id=version.run_id,
        iteration=version.manifest.iteration,
        architecture_fingerprint=version.manifest.architecture_fingerprint,
        tensors=len(version.manifest.tensors),
        size_bytes=unique_bytes(version.manifest),
        publish_time=version.publish_time,
        pinned=pinned,
        settings=version.manifest.settings,
        promoted=version.manifest.promoted or version.version,
    )


def unique_bytes(manifest: weights_pb2.Manifest) -> int:
    """Bytes of the tensors; equal ones count once."""
    return sum({entry.digest: entry.size_bytes for entry in manifest.tensors}.values())


def check_manifest(manifest: weights_pb2.Manifest) -> None:
    """Refuses manifests that cannot be one set of weights. Looks at no tensor and allocates nothing.

    Raises:
        RejectedError: Names the first fault.
    """
    if not 1 <= len(manifest.tensors) <= MAX_TENSORS:
        raise RejectedError(f"a manifest has 1 to {MAX_TENSORS} tensors, got {len(manifest.tensors)}")
    sizes: dict[str, int] = {}
    for entry in manifest.tensors:
        _check_entry(entry)
        if sizes.setdefault(entry.digest, entry.size_bytes) != entry.size_bytes:
            raise RejectedError(f"tensor {entry.name!r} shares its digest with one of another size")
    _check_unique("tensor", [entry.name for entry in manifest.tensors])
    if manifest.architecture_fingerprint != _fingerprint(manifest):
        raise RejectedError(
            f"the manifest's tensors have the architecture {_fingerprint(manifest)}, "
            f"it says {manifest.architecture_fingerprint[:80]!r}"
        )


def _check_entry(entry: weights_pb2.TensorEntry) -> None:
    _check_name("tensor", entry.name)
    if entry.dtype not in NUMPY_DTYPES or any(extent < 0 for extent in entry.shape):
        raise RejectedError(f"tensor {entry.name!r} has dtype {entry.dtype} and shape {list(entry.shape)}")
    if entry.wire_dtype and (entry.wire_dtype, entry.dtype) != (tensor_pb2.DTYPE_BFLOAT16, tensor_pb2.DTYPE_FLOAT32):
        raise RejectedError(f"tensor {entry.name!r} of dtype {entry.dtype} cannot travel as dtype {entry.wire_dtype}")
    needed = math.prod(entry.shape) * (2 if is_bfloat16(entry) else NUMPY_DTYPES[entry.dtype].itemsize)
    if entry.size_bytes != needed:
        raise RejectedError(f"tensor {entry.name!r} has {entry.size_bytes} bytes, its shape needs {needed}")
    if not _DIGEST.fullmatch(entry.digest):
        raise RejectedError(f"tensor {entry.name!r} has the malformed digest {entry.digest!r}")


def _check_name(kind: str, name: str) -> None:
    parts = name.replace("\\", "/").split("/")
    if len(name) > MAX_NAME_LENGTH or not name.isprintable() or {"", ".", ".."} & set(parts):
        raise RejectedError(f"{name[:80]!r} is no name for a {kind}")


def _check_unique(kind: str, names: Sequence[str]) -> None:
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise RejectedError(f"{kind} {twice[0]!r} comes twice in one manifest")


def _fingerprint(manifest: weights_pb2.Manifest) -> str:
    return architecture_fingerprint(
        (entry.name, NUMPY_DTYPES[entry.dtype].name, entry.shape) for entry in manifest.tensors
    )


def _architecture(entries: Iterable[weights_pb2.TensorEntry]) -> dict[str, str]:
    return {
        entry.name: f"{NUMPY_DTYPES[entry.dtype].name}{list(entry.shape)}"
        for entry in entries
        if entry.dtype in NUMPY_DTYPES
    }
