from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from safetensors.numpy import load_file

from minefleet.core.safetensors_writer import METADATA, row_of, write_tensors

DTYPES = (
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "float16",
    "uint32",
    "int32",
    "float32",
    "uint64",
    "int64",
    "float64",
)
SHAPES = hnp.array_shapes(min_dims=0, min_side=0, max_side=3)
NAMES = st.text(min_size=1).filter(lambda name: name != METADATA)
ARRAYS = st.dictionaries(NAMES, st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, SHAPES)))


@given(arrays=ARRAYS)
def test_safetensors_reads_bit_for_bit_what_is_written(
    tmp_path_factory: pytest.TempPathFactory, arrays: dict[str, NDArray[Any]]
) -> None:
    path = tmp_path_factory.mktemp("written") / "file"
    write_tensors(path, [row_of(*item) for item in arrays.items()], arrays.__getitem__)
    loaded = load_file(path)
    assert set(loaded) == set(arrays)
    for name, array in arrays.items():
        assert (loaded[name].dtype, loaded[name].shape) == (array.dtype, array.shape)
        assert loaded[name].tobytes() == array.tobytes()


def test_safetensors_writer_refuses_a_reserved_name(tmp_path: Path) -> None:
    array = np.zeros(1, np.float32)
    with pytest.raises(ValueError, match=METADATA):
        write_tensors(tmp_path / "file", [row_of(METADATA, array)], {METADATA: array}.__getitem__)


def test_arrays_that_are_not_contiguous_are_written_in_order(tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T[::2]
    write_tensors(tmp_path / "file", [row_of("w", array)], {"w": array}.__getitem__)
    np.testing.assert_array_equal(load_file(tmp_path / "file")["w"], array)
