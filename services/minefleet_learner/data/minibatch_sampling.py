"""Cuts fragments into the pieces that minibatches are drawn from: steps, or sequences where the policy has memory.

    a fragment    s₀ s₁ s₂ s₃ s₄ s₅ s₆
    without       s₀│s₁│s₂│s₃│s₄│s₅│s₆
    with memory   s₀ s₁ s₂│s₃ s₄ s₅│s₆      `context_length` 3

Sequences of one pass are padded to the longest of them, and so are of like length (`evenly`).

Neighbouring steps are alike: a minibatch of few whole fragments says less of an iteration than its number of steps
makes believe, and its gradient is noisier. So pieces are drawn from all fragments alike, and are as short as the policy
allows.

Shape legend: B = fragments, T = steps in the longest one, P = pieces, L = steps of the longest piece.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minefleet.config import TrainConfig
from minefleet_learner.data.batch import Batch

PADDING = 0.1
"""Share of what a pass computes that may be padding."""


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


def evenly(lengths: Tensor, most: int) -> list[Tensor]:
    """Parts sequences into passes, of which each is padded little.

    Args:
        lengths: [n] int64, of the sequences.
        most: Sequences of a pass at most.

    Returns:
        Where the sequences of each pass are among all, [p] int64 on the CPU: the longest ones first.
    """
    in_order, order = lengths.cpu().sort(descending=True, stable=True)
    if len(order) and in_order[0] == in_order[-1]:
        return list(torch.split(order, most))  # Always so without memory: no loop over thousands of steps.
    sizes, longest, steps = [0], 0, 0
    for length in in_order.tolist():
        steps += length
        if sizes[-1] == most or steps < (1 - PADDING) * (sizes[-1] + 1) * longest:
            sizes.append(0)
            steps = length
        if not sizes[-1]:
            longest = length
        sizes[-1] += 1
    return list(torch.split(order, sizes))


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


def draw(batch: Batch, row: Tensor, lengths: Tensor, count: int, most: int) -> list[list[Tensor]]:
    """Shuffles pieces and deals them out to optimizer steps, as evenly as can be.

    Where the batch is not in memory as a whole, fragments are shuffled into pools that are, and pieces within each.

    Args:
        batch: What is trained on.
        row: [P] int64 on the CPU, the fragment of each piece.
        lengths: [P] int64 on the CPU, the steps of each piece.
        count: Optimizer steps.
        most: Pieces of a micro-batch at most.

    Returns:
        Per optimizer step the pieces of its micro-batches, int64 on the CPU; those of a micro-batch are in one pool.
    """
    fragments = len(batch)
    pools = batch.pools(torch.arange(fragments) if batch.unpacker is None else torch.randperm(fragments))
    pool_of = torch.empty(fragments, dtype=torch.int64)
    for number, pool in enumerate(pools):
        pool_of[pool] = number
    order = torch.randperm(len(row))
    order = order[pool_of[row[order]].argsort(stable=True)]
    return [
        [run[part] for run in _runs(share, pool_of[row[share]]) for part in evenly(lengths[run], most)]
        for share in torch.tensor_split(order, count)
    ]


def _runs(pieces: Tensor, pools: Tensor) -> Sequence[Tensor]:
    """Parts pieces where the pool changes."""
    return torch.split(pieces, torch.unique_consecutive(pools, return_counts=True)[1].tolist()) if len(pieces) else ()
