"""The recurrent part of a GRU over time, with resets anywhere and the gradient of its weights in one product.

    r, z = σ(xᵣ + hᵣ), σ(x_z + h_z)        n = tanh(xₙ + r · hₙ)        h' = n + z (h - n)        [hᵣ h_z hₙ] = h Wᵀ + b

Its products are those of `dense`, which may be twice as fast on a CPU as those of `torch.nn.GRU`, and its gradient has
one product for the weights in place of one per step. A reset is a zero in the state, so that one loop over time serves
rows that are reset at different steps.

Cho et al. 2014, https://arxiv.org/abs/1406.1078, in the form of cuDNN, in which r is applied after the product.

Shape legend: B = rows, T = steps, H = units.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minefleet.policies.layers.onednn_linear import by_columns, multiply

REPACK_MIN_STEPS = 8
"""Steps from which a copy of the weights, laid out for the product of few rows, has paid; it has after four or five."""


class Gates(NamedTuple):
    """One step, as its gradient needs it; tensors of [B, H]."""

    before: Tensor
    """h, after a reset."""
    reset: Tensor
    """r."""
    update: Tensor
    """z."""
    new: Tensor
    """n."""
    product: Tensor
    """hₙ."""


def run(inputs: Tensor, state: Tensor, first: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Runs over time.

    Args:
        inputs: [B, T, 3H], xᵣ, x_z and xₙ of each step, with their biases.
        state: [B, H], before step 0.
        first: [B, T] bool, the state is reset before this step.
        weight: [3H, H], W.
        bias: [3H], b.

    Returns:
        [B, T, H], h' of each step, and the last one, [B, H].
    """
    if torch.is_grad_enabled():
        output: Tensor = _Recurrence.apply(inputs, state, first, weight, bias)  # type: ignore[no-untyped-call]
    else:
        output = torch.stack([after for _, after in _steps(inputs, state, first, weight, bias)], 1)
    return output, output[:, -1]


def _steps(
    inputs: Tensor, state: Tensor, first: Tensor, weight: Tensor, bias: Tensor
) -> Iterator[tuple[Gates, Tensor]]:
    """Yields each step and the state after it."""
    weight = by_columns(weight) if inputs.shape[1] >= REPACK_MIN_STEPS else weight
    for step, fresh in zip(inputs.unbind(1), first.unsqueeze(-1).unbind(1), strict=True):
        before = state.masked_fill(fresh, 0.0)
        x_reset, x_update, x_new = step.chunk(3, -1)
        h_reset, h_update, product = multiply(before, weight, bias).chunk(3, -1)
        reset, update = torch.sigmoid(x_reset + h_reset), torch.sigmoid(x_update + h_update)
        new = torch.tanh(torch.addcmul(x_new, reset, product))
        state = torch.lerp(new, before, update)
        yield Gates(before, reset, update, new, product), state


class _Recurrence(torch.autograd.Function):
    """`run`, with its gradient."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, state: Tensor, first: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        steps = list(_steps(inputs, state, first, weight, bias))
        gates = (torch.stack(each) for each in zip(*(gates for gates, _ in steps), strict=True))
        ctx.save_for_backward(first, weight, *gates)
        return torch.stack([after for _, after in steps], 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, Tensor, Tensor]:
        first, weight, before, reset, update, new, product = ctx.saved_tensors
        # What does not depend on later steps, of all steps at once.
        to_update = (before - new) * update * (1 - update)
        to_new = (1 - update) * (1 - new.square())
        to_reset = product * reset * (1 - reset)
        of_products = gradient.new_empty(*before.shape[:2], 3 * before.shape[2])
        of_new = torch.empty_like(before)
        later, back = torch.zeros_like(before[0]), weight.t()
        for t in reversed(range(len(before))):
            later = later + gradient[:, t]
            torch.mul(later, to_new[t], out=of_new[t])
            by_reset, by_update, by_product = of_products[t].chunk(3, -1)
            torch.mul(of_new[t], to_reset[t], out=by_reset)
            torch.mul(later, to_update[t], out=by_update)
            torch.mul(of_new[t], reset[t], out=by_product)
            later = torch.addcmul(multiply(of_products[t], back), later, update[t]).masked_fill(first[:, t, None], 0.0)
        flat, units = of_products.flatten(0, 1), before.shape[2]
        of_inputs = torch.cat([of_products[..., : 2 * units], of_new], -1).transpose(0, 1)
        return of_inputs, later, None, multiply(flat.t(), before.flatten(0, 1).t()), flat.sum(0)
