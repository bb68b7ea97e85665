"""Draws minibatches: shuffles the pieces of a batch's fragments and deals them out.

Sequences of one pass are padded to the longest of them, and so are of like length (`evenly`).

Neighbouring steps are alike: a minibatch of few whole fragments says less of an iteration than its number of steps
makes believe, and its gradient is noisier. So pieces are drawn from all fragments alike, and are as short as the policy
allows.

Shape legend: P = pieces.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from minefleet_learner.data.batch import Batch

PADDING = 0.1
"""Share of what a pass computes that may be padding."""


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
