from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from minefleet.rpc.weights.bfloat16 import as_fetched, from_bfloat16, to_bfloat16

LARGEST = 0x7F7F7FFF
"""Of the float32 that have a finite bfloat16."""
FINITE = np.concatenate([np.arange(0x7F80), np.arange(0x8000, 0xFF80)]).astype(np.uint16)
"""Every finite bfloat16."""


def floats(*bits: int) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    return np.array(bits, np.uint32).view(np.float32)


def exactly(magnitude: int) -> Fraction:
    """The value of a bfloat16 without sign, from its definition; infinity is what would follow the largest."""
    exponent, mantissa = divmod(magnitude, 2**7)
    if exponent == 0:
        return Fraction(mantissa) * Fraction(2) ** -133
    return Fraction(2**7 + mantissa) * Fraction(2) ** (exponent - 134)


def nearest(bits: int) -> int:
    """The bfloat16 nearest to a float32; of two, the one with an even last bit."""
    sign, magnitude = bits >> 31 << 15, (bits & 0x7FFFFFFF) >> 16
    value = abs(Fraction(float(floats(bits)[0])))
    return sign | min((magnitude, magnitude + 1), key=lambda near: (abs(value - exactly(near)), near % 2))


@given(bits=st.integers(0, LARGEST), sign=st.sampled_from([0, 1]))
@example(bits=0, sign=1)  # -0
@example(bits=1, sign=0)  # the least subnormal
@example(bits=0x8000, sign=1)  # a tie between 0 and the least subnormal bfloat16
@example(bits=0x18000, sign=0)  # a tie between two subnormal ones
@example(bits=0x7FFFFF, sign=0)  # the largest subnormal, which becomes normal
@example(bits=0x3F808000, sign=0)  # a tie, downwards
@example(bits=0x3F818000, sign=1)  # a tie, upwards
@example(bits=0x3FFFFFFF, sign=0)  # carries into the exponent
@example(bits=LARGEST, sign=1)
def test_to_bfloat16_rounds_to_nearest_even(bits: int, sign: int) -> None:
    rounded = to_bfloat16(floats(sign << 31 | bits))
    assert rounded is not None
    assert rounded.tolist() == [nearest(sign << 31 | bits)]


def test_every_finite_bfloat16_survives_the_way_back_and_forth() -> None:
    array = from_bfloat16(FINITE)
    np.testing.assert_array_equal(array.view(np.uint32), FINITE.astype(np.uint32) << 16)
    again = to_bfloat16(array)
    assert again is not None
    np.testing.assert_array_equal(again, FINITE)


@pytest.mark.parametrize("bits", [LARGEST + 1, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001])
def test_an_array_with_a_value_that_has_no_finite_bfloat16_stays_exact(bits: int) -> None:
    array = floats(*[0x3F800000] * 70_000, bits)
    assert to_bfloat16(array) is None
    np.testing.assert_array_equal(as_fetched({"a": array}, {"a"})["a"].view(np.uint32), array.view(np.uint32))


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "uint16", "bool"])
def test_to_bfloat16_of_other_dtypes_than_float32_returns_none(dtype: str) -> None:
    assert to_bfloat16(np.ones(3, dtype)) is None


@given(
    array=arrays(
        np.float32, st.sampled_from([(), (0,), (0, 3), (3, 4), (2, 1, 5)]), elements=st.floats(-9, 9, width=32)
    )
)
def test_to_bfloat16_keeps_the_shape_whatever_byte_order_and_memory_layout(
    array: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]",
) -> None:
    bits = to_bfloat16(array)
    assert bits is not None and bits.shape == array.shape
    for same in (array.astype(">f4"), np.asfortranarray(array), np.stack([array, array], axis=-1)[..., 0]):
        again = to_bfloat16(same)
        assert again is not None and again.flags.c_contiguous
        np.testing.assert_array_equal(again, bits)


def test_as_fetched_rounds_only_the_tensors_that_are_named() -> None:
    third = np.full(2, 1 / 3, np.float32)
    fetched = as_fetched({"a": third, "b": third}, {"a", "not there"})
    assert list(fetched) == ["a", "b"]
    assert fetched["b"] is third
    assert fetched["a"].tolist() == [0.333984375] * 2
