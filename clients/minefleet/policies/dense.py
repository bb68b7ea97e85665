"""Matrix products of dense layers, on a CPU by oneDNN.

torch multiplies float32 matrices on a CPU by MKL, which uses half of what the vector units of other vendors' processors
can do; its convolutions go through oneDNN, which uses all of them. The operation is the one that `torch.compile` makes
of linear layers. Where it is not at hand, or does not apply, everything is computed as `torch.nn.Linear` does.

Shape legend: N = rows, I = inputs, O = outputs.
"""

from typing import Any

import torch
from torch import Tensor, nn

_MULTIPLY: Any = (
    torch.ops.mkldnn._linear_pointwise  # It has no public name.
    if torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # type: ignore[no-untyped-call]
    else None
)


class Dense(nn.Linear):
    """`torch.nn.Linear`, with the same parameters."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # As torch names it.
        """[..., I] to [..., O]."""
        return dense(input, self.weight, self.bias)


def is_fast(values: Tensor) -> bool:
    """Whether products of these are computed by oneDNN: float32 on a CPU, neither to be rounded nor to be compiled."""
    return (
        _MULTIPLY is not None
        and values.dtype == torch.float32
        and values.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def dense(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A dense layer, differentiable.

    Args:
        values: [..., I].
        weight: [O, I].
        bias: [O].

    Returns:
        [..., O].
    """
    if not is_fast(values):
        return nn.functional.linear(values, weight, bias)
    rows = values.reshape(-1, values.shape[-1])
    if torch.is_grad_enabled():
        product: Tensor = _Dense.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    else:
        product = multiply(rows, weight, bias)
    return product.view(*values.shape[:-1], len(weight))


def multiply(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Rows [N, I] · weight [O, I]ᵀ + bias [O]: [N, O]. Has no gradient of its own."""
    if is_fast(rows):
        return _MULTIPLY(rows, weight, bias, "none", [], "")  # type: ignore[no-any-return]  # An operation has no types.
    return nn.functional.linear(rows, weight, bias)


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
