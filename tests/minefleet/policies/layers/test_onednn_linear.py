"""Products by oneDNN, and the GRU that is made of them, against torch's own."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from minefleet.policies.layers import gru, gru_autograd, onednn_linear
from minefleet.policies.layers.gru import GRUCore
from minefleet.policies.layers.onednn_linear import Dense

SIZES = st.tuples(*[st.integers(1, 40)] * 3)


@pytest.fixture(autouse=True, scope="module")
def by_onednn() -> Iterator[None]:
    """All products go through oneDNN, however small and whatever the processor."""
    assert onednn_linear.MULTIPLY is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onednn_linear, "MIN_ONEDNN_PRODUCT", 0)
        yield


def leaves(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def gradients(output: Tensor, of: list[Tensor]) -> list[Tensor]:
    torch.manual_seed(1)
    return list(torch.autograd.grad(output, of, torch.randn_like(output)))


@given(SIZES)
def test_a_dense_layer_and_its_gradients_are_those_of_torch(sizes: tuple[int, int, int]) -> None:
    rows, inputs, outputs = sizes
    own = leaves((rows, inputs), (outputs, inputs), (outputs,))
    ours, theirs = onednn_linear.dense(*own), nn.functional.linear(*own)
    for mine, other in zip([ours, *gradients(ours, own)], [theirs, *gradients(theirs, own)], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-4)


def test_dense_products_below_the_onednn_minimum_are_computed_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def multiply(rows: Tensor, weight: Tensor, *_: object) -> Tensor:
        asked.append(len(rows))
        return rows @ weight.t()

    monkeypatch.setattr(onednn_linear, "MIN_ONEDNN_PRODUCT", 4 * 8 * 6)
    monkeypatch.setattr(onednn_linear, "MULTIPLY", multiply)
    for rows in (3, 4, 5):
        values, weight = torch.ones(rows, 8), torch.ones(6, 8)
        assert torch.equal(onednn_linear.multiply(values, weight), torch.full((rows, 6), 8.0))
        assert torch.equal(onednn_linear.dense(values, weight, torch.zeros(6)), torch.full((rows, 6), 8.0))
    assert asked == [4, 4, 5, 5]


def test_dense_without_the_onednn_operation_equals_torch_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn_linear, "MULTIPLY", None)
    own = leaves((4, 8), (6, 8), (6,))
    assert torch.equal(onednn_linear.dense(*own), nn.functional.linear(*own))


def test_dense_of_strided_values_and_weights_equals_torch_linear() -> None:
    values, weight, bias = leaves((5, 3, 8), (8, 6), (6,))
    strided = values.transpose(0, 1)
    torch.testing.assert_close(
        onednn_linear.dense(strided, weight.t(), bias),
        nn.functional.linear(strided, weight.t(), bias),
        rtol=1e-5,
        atol=1e-5,
    )


def test_dense_layer_without_gradients_computes_the_same() -> None:
    own = leaves((4, 8), (6, 8), (6,))
    wanted = onednn_linear.dense(*own).detach()
    with torch.inference_mode():
        assert torch.equal(onednn_linear.dense(*own), wanted)


def test_dense_computes_no_gradient_of_detached_values() -> None:
    values, weight, bias = leaves((4, 8), (6, 8), (6,))
    onednn_linear.dense(values.detach(), weight, bias).sum().backward()  # type: ignore[no-untyped-call]
    assert values.grad is None and weight.grad is not None and bias.grad is not None


def test_dense_of_other_dtypes_than_float32_is_left_to_torch() -> None:
    (values,) = leaves((4, 8))
    assert not onednn_linear.is_plain(values.double())
    assert not onednn_linear.is_plain(values.half())
    with torch.autocast("cpu", torch.bfloat16):
        assert not onednn_linear.is_plain(values)
        assert Dense(8, 6)(values).dtype == torch.bfloat16


def test_dense_layer_loads_the_parameters_of_torch_linear() -> None:
    plain, ours = nn.Linear(8, 6), Dense(8, 6)
    ours.load_state_dict(plain.state_dict())
    torch.testing.assert_close(ours(torch.eye(8)), plain(torch.eye(8)))


def recurrence(dtype: torch.dtype, rows: int, steps: int) -> tuple[GRUCore, Tensor, Tensor]:
    torch.manual_seed(0)
    memory = GRUCore(7, 5).to(dtype)
    for parameter in memory.parameters():
        nn.init.normal_(parameter, std=0.5)
    features, state = leaves((rows, steps, 7), (rows, 5), dtype=dtype)
    return memory, features, state


def run_twice(
    memory: GRUCore, features: Tensor, state: Tensor, first: Tensor, monkeypatch: pytest.MonkeyPatch, *, ours: bool
) -> list[Tensor]:
    """Outputs, the last state, and the gradients of both by everything that they depend on."""
    monkeypatch.setattr(gru, "is_plain", lambda _: ours)
    output, last = memory(features, state, first)
    assert torch.equal(output[:, -1], last)
    return [output, *gradients(output, [features, state, *memory.parameters()])]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("resets", [[], [(0, 0)], [(1, 3), (2, 3), (0, 5)], [(0, 0), (0, 1), (0, 2), (1, 7)]])
def test_gru_recurrence_and_its_gradients_are_those_of_torch(
    dtype: torch.dtype, tolerance: float, resets: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, features, state = recurrence(dtype, rows=3, steps=8)
    first = torch.zeros(3, 8, dtype=torch.bool)
    for row, step in resets:
        first[row, step] = True
    ours = run_twice(memory, features, state, first, monkeypatch, ours=True)
    theirs = run_twice(memory, features, state, first, monkeypatch, ours=False)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)


def test_gru_recurrence_passes_gradcheck() -> None:
    inputs, state, weight, bias = leaves((2, 3, 12), (2, 4), (12, 4), (12,), dtype=torch.float64)
    first = torch.tensor([[False, True, False], [True, False, False]])
    assert torch.autograd.gradcheck(gru_autograd.run, (inputs, state, first, weight, bias))


def test_gru_in_inference_mode_computes_the_same_as_in_training() -> None:
    memory, features, state = recurrence(torch.float32, rows=3, steps=8)
    first = torch.zeros(3, 8, dtype=torch.bool)
    trained, _ = memory(features, state, first)
    with torch.inference_mode():
        acted, _ = memory(features, state, first)
    assert torch.equal(trained.detach(), acted)
