"""float32 tensors as bfloat16: half the bytes on the wire and on disk, for 8 of 24 bits of precision.

ml_dtypes converts, in one pass during which other threads run; the same formula on NumPy's integers takes five, and
several times as long. It is small, needs NumPy alone, and is what JAX uses.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from ml_dtypes import bfloat16
from numpy.typing import NDArray

Bits = NDArray[np.uint16]
"""bfloat16 values: the upper halves of float32 ones."""

_WITHOUT_SIGN = np.uint16(0x7FFF)
_INFINITY = np.uint16(0x7F80)


def to_bfloat16(array: NDArray[Any]) -> Bits | None:
    """Rounds to nearest, ties to even; what is too small for the normal range becomes subnormal or 0.

    None, which means that the array travels as it is, for other dtypes than float32, and where a value would become
    infinity (above 3.3961775e38) or is not finite: nothing is made infinite or NaN here.
    """
    if array.dtype.newbyteorder("=") != np.float32:
        return None
    with np.errstate(invalid="ignore"):  # A signalling NaN is one.
        bits = array.astype(bfloat16, order="C").view(np.uint16)
    return bits if all_finite(bits) else None


def from_bfloat16(bits: Bits) -> NDArray[np.float32]:
    """The same values as float32; exact."""
    array: NDArray[np.float32] = bits.view(bfloat16).astype(np.float32)
    return array


def all_finite(bits: Bits) -> bool:
    """Whether none is NaN or infinity. np.isfinite says the same of ml_dtypes' bfloat16, but slowly."""
    return bool(((bits & _WITHOUT_SIGN) < _INFINITY).all())


def as_fetched(weights: Mapping[str, NDArray[Any]], rounded: Collection[str]) -> dict[str, NDArray[Any]]:
    """The weights as actors get them when those named in `rounded` travel as bfloat16."""
    return {name: _as_fetched(array) if name in rounded else array for name, array in weights.items()}


def _as_fetched(array: NDArray[Any]) -> NDArray[Any]:
    bits = to_bfloat16(array)
    return array if bits is None else from_bfloat16(bits)
