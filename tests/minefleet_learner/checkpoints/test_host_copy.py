import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from minefleet_learner.checkpoints.host_copy import Copier

DTYPES = (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool)
SHAPES = st.lists(st.integers(0, 4), max_size=3)


@given(parts=st.lists(st.tuples(SHAPES, st.sampled_from(DTYPES)), max_size=6))
def test_host_copy_is_equal_and_stays_as_it_was(parts: list[tuple[list[int], torch.dtype]]) -> None:
    tensors = {str(number): torch.full(shape, number % 2, dtype=dtype) for number, (shape, dtype) in enumerate(parts)}
    arrays = Copier().copy(tensors)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    for tensor in tensors.values():
        tensor.zero_()
    assert list(arrays) == list(tensors)
    for name, array in arrays.items():
        assert array.flags.aligned
        np.testing.assert_array_equal(array, before[name].numpy(), strict=True)


def test_memory_is_used_again_only_when_none_of_its_arrays_is_held() -> None:
    copier, tensors = Copier(), {"a": torch.ones(5), "b": torch.ones(3)}
    first = copier.copy(tensors)
    held = first.pop("b")
    places = {first.pop("a").ctypes.data}
    second = copier.copy({"a": torch.zeros(5), "b": torch.zeros(3)})
    assert second["a"].ctypes.data not in places
    assert held.tolist() == [1, 1, 1]
    del held
    assert copier.copy(tensors)["a"].ctypes.data in places


def test_a_parameter_that_is_trained_is_copied_and_not_followed() -> None:
    module = torch.nn.Linear(2, 2)
    arrays = Copier().copy(module.state_dict(keep_vars=True))
    before = arrays["weight"].copy()
    torch.optim.SGD(module.parameters(), lr=1.0).step()
    module.weight.data.add_(1)
    np.testing.assert_array_equal(arrays["weight"], before)


def test_host_copy_of_other_tensors_gets_memory_of_their_size() -> None:
    copier = Copier()
    copier.copy({"a": torch.ones(2)})
    assert copier.copy({"a": torch.ones(2), "b": torch.ones(1000)})["b"].sum() == 1000
    assert copier.copy({}) == {}
