"""Fragments to and from the wire: a small header, and the packed arrays back to back.

No pickle: an array is its dtype, shape, codec and little-endian bytes in C order. Sizes are checked before anything is
allocated.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields

import numpy as np
import xxhash
from numpy.typing import NDArray

from minefleet.core.errors import CorruptError, RejectedError
from minefleet.core.fragment import Fragment, LargeFields
from minefleet.core.tree import Tree, flatten, join, unflatten
from minefleet.rpc.tensor_compression import (
    AS_IT_IS,
    PACKINGS,
    field_of,
    is_narrow,
    narrowed,
    pack,
    raw_bytes_of,
    unpack,
)
from minefleet.v1 import fragment_pb2, tensor_pb2

MAX_RAW_BYTES = 2**30
"""Largest fragment that is decoded, after unpacking."""


_FIELDS = tuple(field.name for field in fields(Fragment))
_PACKED = ("obs", "cut_obs")
_TREES = ("obs", "action", "cut_obs", "recurrent_state")


def checksum(payload: bytes | memoryview) -> int:
    """Returns the xxh3-64 of a payload."""
    return xxhash.xxh3_64_intdigest(payload)


def encode(
    header: fragment_pb2.FragmentHeader, fragment: Fragment, *, compression: str = "zstd", state_dtype: str = "float32"
) -> tuple[fragment_pb2.FragmentHeader, bytes]:
    """Packs a fragment; observations are compressed, the rest is small.

    Args:
        header: Its run, name, chunk, task and schema; a copy gets what describes the payload.
        fragment: What to pack.
        compression: zstd, lz4, none, or halving: zstd where that halves an array.
        state_dtype: What float32 in the recurrent state becomes: float32, bfloat16 or float16.
    """
    specs, parts, raw_bytes = [], [], 0
    for name, wide in _arrays(fragment):
        dtype, array = narrowed(name, wide, state_dtype)
        codec, part = pack(array, dtype, PACKINGS[compression] if name.startswith(_PACKED) else AS_IT_IS)
        specs.append(
            tensor_pb2.TensorSpec(name=name, dtype=dtype, shape=array.shape, codec=codec, packed_bytes=len(part))
        )
        parts.append(part)
        raw_bytes += array.nbytes
    payload = b"".join(parts)
    whole = fragment_pb2.FragmentHeader(
        length=len(fragment),
        oldest_version=int(fragment.policy_version.min()),
        newest_version=int(fragment.policy_version.max()),
        checksum=checksum(payload),
        payload_bytes=len(payload),
        raw_bytes=raw_bytes,
        tensors=specs,
    )
    whole.MergeFrom(header)
    return whole, payload


def decode(header: fragment_pb2.FragmentHeader, payload: bytes) -> Fragment:
    """Unpacks what `encode` packed. Arrays that were not compressed are read-only views of the payload.

    A recurrent state of fewer bits is float32 again.

    Raises:
        CorruptError: If the payload does not match its checksum.
        RejectedError: If the header is malformed.
    """
    _verify(header, payload)
    return _fragment(_unpacked(header, payload, _FIELDS))


@dataclass(frozen=True, kw_only=True, slots=True)
class HalfPacked:
    """A fragment whose `LargeFields` stay packed until they are needed."""

    header: fragment_pb2.FragmentHeader
    payload: bytes
    steps: Fragment
    """The rest of it; the large fields are empty trees."""
    large_bytes: int
    """Bytes of the large fields when they are unpacked."""

    @property
    def name(self) -> tuple[str, int]:
        """Its stream and sequence."""
        return self.header.name.stream, self.header.name.sequence

    def unpack(self) -> LargeFields:
        """Unpacks the large fields, anew at each call."""
        values = _values(_unpacked(self.header, self.payload, LargeFields._fields))
        return LargeFields(*(values[field] for field in LargeFields._fields))


def decode_half(header: fragment_pb2.FragmentHeader, payload: bytes) -> HalfPacked:
    """Verifies a fragment and unpacks what is small. Raises what `decode` does."""
    sizes = _verify(header, payload)
    steps = _fragment(_unpacked(header, payload, [name for name in _FIELDS if name not in LargeFields._fields]))
    leading = {"obs": len(steps), "cut_obs": len(steps.cut_index)}
    for spec in header.tensors:
        wanted = leading.get(field_of(spec.name))
        if wanted is not None and tuple(spec.shape[:1]) != (wanted,):
            raise RejectedError(f"tensor {spec.name} has shape {list(spec.shape)}, expected {wanted} rows")
    large_bytes = sum(
        2 * size if is_narrow(spec) else size
        for spec, size in zip(header.tensors, sizes, strict=True)
        if field_of(spec.name) in LargeFields._fields
    )
    return HalfPacked(header=header, payload=payload, steps=steps, large_bytes=large_bytes)


def check_header(header: fragment_pb2.FragmentHeader) -> list[int]:
    """Rejects headers whose numbers do not fit together, before anything is allocated. Returns the arrays' bytes."""
    if not header.name.stream or header.length < 1 or header.oldest_version > header.newest_version:
        raise RejectedError("a fragment needs a stream, a length >= 1 and oldest_version <= newest_version")
    if not header.payload_bytes:
        raise RejectedError("a fragment needs a payload")
    packed_bytes = [spec.packed_bytes for spec in header.tensors]
    if min(packed_bytes, default=0) < 0 or sum(packed_bytes) != header.payload_bytes:
        raise RejectedError("the tensors' packed_bytes do not add up to payload_bytes")
    sizes = [raw_bytes_of(spec) for spec in header.tensors]
    if header.raw_bytes > MAX_RAW_BYTES or sum(sizes) != header.raw_bytes:
        raise RejectedError(f"the tensors' sizes do not add up to raw_bytes, or exceed {MAX_RAW_BYTES}")
    return sizes


def _arrays(fragment: Fragment) -> Iterable[tuple[str, NDArray[np.generic]]]:
    for field in _FIELDS:
        value = getattr(fragment, field)
        if isinstance(value, np.ndarray):
            yield field, value
        elif value is not None:
            yield from ((join(field, path), leaf) for path, leaf in flatten(value).items())


def _verify(header: fragment_pb2.FragmentHeader, payload: bytes) -> list[int]:
    """Verifies a fragment; returns the arrays' bytes when they are unpacked."""
    if len(payload) != header.payload_bytes or checksum(payload) != header.checksum:
        raise CorruptError(f"fragment {header.name.stream}/{header.name.sequence} does not match its checksum")
    return check_header(header)


def _unpacked(
    header: fragment_pb2.FragmentHeader, payload: bytes, wanted: Collection[str]
) -> dict[str, NDArray[np.generic]]:
    """The arrays of some fields of a fragment that was verified."""
    arrays: dict[str, NDArray[np.generic]] = {}
    view, start = memoryview(payload), 0
    for spec in header.tensors:
        stop = start + spec.packed_bytes
        if field_of(spec.name) in wanted:
            arrays[spec.name] = unpack(spec, view[start:stop], raw_bytes_of(spec))
        start = stop
    return arrays


def _values(arrays: dict[str, NDArray[np.generic]]) -> dict[str, Tree]:
    """The fields that arrays make up; trees of which there is no array are empty."""
    values: dict[str, Tree] = {name: {} for name in _TREES}
    trees: dict[str, dict[str, NDArray[np.generic]]] = {}
    for path, array in arrays.items():
        name, _, inner = path.partition("/")
        if inner:
            trees.setdefault(name, {})[inner] = array
        else:
            values[name] = array
    return values | {name: unflatten(inner) for name, inner in trees.items()}


def _fragment(arrays: dict[str, NDArray[np.generic]]) -> Fragment:
    try:
        return Fragment(**_values(arrays))  # The keys are the fields, checked by the constructor.
    except (TypeError, ValueError) as error:
        raise RejectedError(f"the payload is no fragment: {error}") from error
