"""Advantages over fragments that continue each other.

        a/4 ──▶ a/5 ──▶ a/6        one row of three: the recursion crosses the borders
        b/2       b/4 ──▶ b/5      a gap: two rows

Every step has its own V(sₜ₊₁), so the last step of a fragment is complete without its successor; a chain only lets the
rewards behind the border into the estimate.

Shape legend: B = fragments in the batch, T = steps in the longest one, R = rows, L = steps in the longest row.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from minefleet_learner.algorithms.gae import generalized_advantages
from minefleet_learner.algorithms.vtrace import VTrace, vtrace


def chain(
    names: Sequence[tuple[str, int]],
    *,
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    mask: Tensor,
    discount: float,
    gae_lambda: float,
    duration: Tensor | None = None,
) -> Tensor:
    """Computes GAE(γ, λ) over rows of contiguous fragments and cuts it back into fragments.

    Args:
        names: B pairs (stream, sequence), in any order.
        reward: [B, T] float, as in `generalized_advantages`; so are the next four.
        value: [B, T] float.
        next_value: [B, T] float.
        terminated: [B, T] bool.
        truncated: [B, T] bool.
        mask: [B, T] bool, False at padding, which follows the last step.
        discount: γ per step of the environment's own, in [0, 1].
        gae_lambda: Bias-variance trade-off λ, in [0, 1].
        duration: [B, T] int, as in `generalized_advantages`.

    Returns:
        [B, T] advantages, 0 at padding.

    Raises:
        ValueError: If there is not one name per row, or the shapes differ.
    """
    rows = _Rows(names, mask)
    advantage = generalized_advantages(
        *map(rows.lay, (reward, value, next_value, terminated, truncated)),
        discount=discount,
        gae_lambda=gae_lambda,
        mask=rows.present,
        duration=None if duration is None else rows.lay(duration),
    )
    return rows.cut(advantage)


def chain_vtrace(
    names: Sequence[tuple[str, int]],
    *,
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    log_ratio: Tensor,
    mask: Tensor,
    discount: float,
    gae_lambda: float,
    rho_bar: float,
    c_bar: float,
    duration: Tensor | None = None,
) -> VTrace:
    """Computes V-trace over rows of contiguous fragments and cuts it back into fragments.

    Takes and raises what `chain` does, and what `vtrace` takes besides.
    """
    rows = _Rows(names, mask)
    traced = vtrace(
        *map(rows.lay, (reward, value, next_value, terminated, truncated, log_ratio)),
        discount=discount,
        gae_lambda=gae_lambda,
        rho_bar=rho_bar,
        c_bar=c_bar,
        mask=rows.present,
        duration=None if duration is None else rows.lay(duration),
    )
    return VTrace(advantage=rows.cut(traced.advantage), target=rows.cut(traced.target))


def contiguous(names: Sequence[tuple[str, int]]) -> list[list[int]]:
    """Groups the indices of fragments that continue each other: one stream, sequences rising by one."""
    groups: list[list[int]] = []
    for index in sorted(range(len(names)), key=lambda i: names[i]):
        stream, sequence = names[index]
        if groups and names[groups[-1][-1]] == (stream, sequence - 1):
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


class _Rows:
    """The places of the steps of B fragments in R rows of contiguous ones."""

    def __init__(self, names: Sequence[tuple[str, int]], mask: Tensor) -> None:
        if len(names) != len(mask):
            raise ValueError(f"expected one name per fragment, got {len(names)} for {len(mask)}")
        groups = contiguous(names)
        order = torch.tensor([index for group in groups for index in group], device=mask.device)
        row = torch.tensor([number for number, group in enumerate(groups) for _ in group], device=mask.device)
        lengths = torch.zeros(len(groups), dtype=torch.int64, device=mask.device).index_add_(0, row, mask.sum(1)[order])
        self._shape = mask.shape
        self._steps = torch.arange(mask.numel(), device=mask.device).view_as(mask)[order][mask[order]]
        """The index of each step into a flattened [B, T], row by row."""
        self.present = torch.arange(int(lengths.max()), device=mask.device) < lengths.unsqueeze(1)
        """[R, L] bool, False at padding."""

    def lay(self, tensor: Tensor) -> Tensor:
        """Lays [B, T] out as rows [R, L], zeros at padding."""
        return tensor.new_zeros(self.present.shape).masked_scatter_(self.present, tensor.flatten()[self._steps])

    def cut(self, rows: Tensor) -> Tensor:
        """Cuts rows [R, L] back into fragments [B, T], 0 at padding."""
        flat = rows.new_zeros(self._shape.numel())
        flat[self._steps] = rows[self.present]
        return flat.view(self._shape)
