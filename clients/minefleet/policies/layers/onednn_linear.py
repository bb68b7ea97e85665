"""Matrix products of dense layers, on a CPU with AVX-512 that is not Intel's by oneDNN.

torch multiplies float32 matrices on a CPU by MKL, which leaves the wider half of the vector units of other vendors'
processors idle; its convolutions go through oneDNN, which uses all of them. The operation is the one that
`torch.compile` makes of linear layers. A call of it costs 10 to 30 µs more than MKL's, so small products stay there.
Where it is not at hand, or does not apply, everything is computed as `torch.nn.Linear` does.

Shape legend: N = rows, I = inputs, O = outputs.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def _multiply() -> Any:
    """The operation that `torch.compile` makes of linear layers, whose name is not public; None where there is none."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    operation = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return None if operation is None else operation.default


def _is_intel() -> bool:
    """Whether MKL uses all of this processor."""
    cpus = Path("/proc/cpuinfo")
    return cpus.exists() and "GenuineIntel" in cpus.read_text()


MULTIPLY = _multiply()
ONEDNN_IS_FASTER = torch.backends.cpu.get_cpu_capability() == "AVX512" and not _is_intel()
MIN_ONEDNN_PRODUCT = 2**22 if ONEDNN_IS_FASTER else sys.maxsize
"""N · I · O from which a product is sooner done by oneDNN."""


class Dense(nn.Linear):
    """`torch.nn.Linear`, with the same parameters."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # As torch names it.
        """[..., I] to [..., O]."""
        return dense(input, self.weight, self.bias)


def is_plain(values: Tensor) -> bool:
    """Whether these are float32 on a CPU, neither to be rounded nor to be compiled."""
    is_as_written = not torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling()
    return values.dtype == torch.float32 and values.device.type == "cpu" and is_as_written


def dense(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A dense layer, differentiable.

    Args:
        values: [..., I].
        weight: [O, I].
        bias: [O].

    Returns:
        [..., O].
    """
    if not _goes_by_onednn(values, weight):
        return nn.functional.linear(values, weight, bias)
    rows = values.reshape(-1, values.shape[-1])
    if torch.is_grad_enabled():
        product: Tensor = _Dense.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    else:
        product = multiply(rows, weight, bias)
    return product.view(*values.shape[:-1], len(weight))


def multiply(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Rows [N, I] · weight [O, I]ᵀ + bias [O]: [N, O]. Has no gradient of its own."""
    if _goes_by_onednn(rows, weight):
        return MULTIPLY(rows, weight, bias, "none", [], "")  # type: ignore[no-any-return]  # An operation has no types.
    return nn.functional.linear(rows, weight, bias)


def by_columns(weight: Tensor) -> Tensor:
    """The same matrix [O, I], laid out in memory by columns: with it a product of few rows is up to twice as fast.

    MKL and oneDNN make this copy in every call otherwise, which takes about as long as the product of 10 rows.
    """
    return weight.t().contiguous().t()


def _goes_by_onednn(values: Tensor, weight: Tensor) -> bool:
    return values.numel() * len(weight) >= MIN_ONEDNN_PRODUCT and MULTIPLY is not None and is_plain(values)


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return multiply(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        rows, weight = ctx.saved_tensors
        wants_rows, wants_weight, wants_bias = ctx.needs_input_grad
        return (
            multiply(gradient, weight.t()) if wants_rows else None,
            multiply(gradient.t(), rows.t()) if wants_weight else None,
            gradient.sum(0) if wants_bias else None,
        )
