"""Cuts fragments into the pieces that minibatches are drawn from: steps, or sequences where the policy has memory.

    a fragment    s₀ s₁ s₂ s₃ s₄ s₅ s₆
    without       s₀│s₁│s₂│s₃│s₄│s₅│s₆
    with memory   s₀ s₁ s₂│s₃ s₄ s₅│s₆      `context_length` 3

Shape legend: B = fragments, T = steps in the longest one, P = pieces, L = steps of the longest piece.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minefleet.config import TrainConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Pieces:
    """Pieces of a batch's fragments, fragment by fragment; only those with a step that is trained."""

    row: Tensor
    """[P] int64, rising: the fragment of each."""
    window: Tensor
    """[P] int64: which of the fragment's windows it is."""
    steps: Tensor
    """[P, L] int64, into a flattened [B, T]; padding repeats a step."""
    mask: Tensor
    """[P, L] bool, False at padding and at steps that only warm the state up."""

    def __len__(self) -> int:
        """P."""
        return len(self.row)

    @property
    def lengths(self) -> Tensor:
        """[P] int64: steps of each, up to the last one that is trained."""
        numbers = torch.arange(1, self.mask.shape[1] + 1, device=self.mask.device)
        return (self.mask * numbers).amax(1)

    def of(self, rows: Tensor, steps: int) -> tuple["Pieces", Tensor]:
        """Pieces of some fragments, as if there were no others.

        Args:
            rows: [b] int64, rising.
            steps: T.

        Returns:
            Them, and where they are among these, [p] int64.
        """
        chosen = torch.isin(self.row, rows).nonzero().squeeze(1)
        row = torch.searchsorted(rows, self.row[chosen])
        moved = (row - self.row[chosen]).unsqueeze(1) * steps
        pieces = Pieces(row=row, window=self.window[chosen], steps=self.steps[chosen] + moved, mask=self.mask[chosen])
        return pieces, chosen


def windows(length: int, longest: int, burn_in: int = 0) -> list[slice]:
    """Parts time: `burn_in` steps, if any, then `longest` at a time."""
    starts = [*([0] if burn_in else []), *range(burn_in, length, longest)]
    return [slice(start, end) for start, end in zip(starts, [*starts[1:], length], strict=True)]


def sequences(length: int, config: TrainConfig) -> list[slice]:
    """The windows of what a policy with memory trains on."""
    return windows(length, config.context_length, config.burn_in)


def cut(trained: Tensor, parts: Sequence[slice]) -> Pieces:
    """Cuts fragments into pieces.

    Args:
        trained: [B, T] bool.
        parts: Windows in time, the same for each fragment.
    """
    rows, width = trained.shape
    starts, ends = (
        torch.tensor([getattr(part, end) for part in parts], device=trained.device) for end in ("start", "stop")
    )
    at = starts.unsqueeze(1) + torch.arange(int((ends - starts).max()), device=trained.device)
    steps = torch.arange(rows, device=trained.device).view(-1, 1, 1) * width + at.clamp_max(width - 1)
    mask = trained.flatten()[steps] & (at < ends.unsqueeze(1))
    row, window = mask.any(-1).nonzero().unbind(1)
    return Pieces(row=row, window=window, steps=steps[row, window], mask=mask[row, window])
