"""The recurrent states before the sequences that a policy with memory trains on.

The state before a fragment is stored with it. Those before its later sequences are computed once an iteration, under
the weights that it begins with: no gradient passes a sequence's start anyway. A pass that is made in any case, for the
values, leaves them on its way (`StartCollector`); `states_before` makes one for nothing else.

Shape legend: B = fragments, W = windows of a fragment; b = rows of a pass.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from minefleet.core.tree import Tree, tree_map
from minefleet.policies import Policy
from minefleet.policies.precision import compute
from minefleet_learner.data.batch import Batch
from minefleet_learner.targets.forward_passes import gather, in_order, observations, passes, stored_state


class StartCollector:
    """Collects the states before windows from a pass over all that was seen in some rows."""

    def __init__(self, batch: Batch, rows: Tensor, parts: Sequence[slice]) -> None:
        """Finds where windows begin.

        Args:
            batch: The fragments.
            rows: [b] int64, those of the pass.
            parts: The windows, in steps.
        """
        seen, first_steps = batch.seen_mask.shape[1], [part.start for part in parts]
        begins = batch.position[rows][:, first_steps] - seen * rows.unsqueeze(1)
        self._begins = begins.cpu()
        ends = [*sorted(set(self._begins.flatten().tolist()))[1:], seen]
        self.parts = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        """Of what was seen: each window begins where one of these does."""
        self._found: list[tuple[Tensor, Tree]] = []

    def record(self, start: int, state: Tree) -> None:
        """Keeps what a window begins with; `state` is a tree of [b, ...] before the observation `start` of the rows."""
        row, window = (self._begins == start).nonzero().unbind(1)
        self._found.append((row * self._begins.shape[1] + window, tree_map(lambda leaf: _chosen(leaf, row), state)))

    def states(self) -> Tree:
        """The states before all windows, a tree of [b, W, ...] on the CPU."""
        index = torch.cat([at for at, _ in self._found]).argsort()
        leaves = tree_map(lambda *parts: torch.cat(parts)[index], *(state for _, state in self._found))
        return tree_map(lambda leaf: leaf.unflatten(0, self._begins.shape), leaves)


@torch.no_grad()
def states_before(
    policy: Policy, batch: Batch, parts: Sequence[slice], *, rows_per_pass: int, dtype: torch.dtype, state: Tree
) -> Tree:
    """Runs a policy over fragments.

    Args:
        policy: With memory.
        batch: The fragments.
        parts: The windows.
        rows_per_pass: Fragments of a pass.
        dtype: What the layers below the heads compute in.
        state: Where it begins, a tree of [B, ...]; {} for the stored states.

    Returns:
        The states before each window, a tree of [B, W, ...] on the CPU.
    """
    found: list[tuple[Tensor, Tree]] = []
    for rows in passes(batch, rows_per_pass, whole_rows=True):
        longest = int(batch.mask[rows].sum(1).max())
        before = [tree_map(lambda leaf, at=rows: leaf[at], state) or stored_state(batch, rows)]
        for part in parts[:-1]:
            if part.start >= longest:
                before.append(before[-1])  # No piece begins behind it.
                continue
            seen = batch.position[rows, part.start : min(part.stop, longest)]
            obs, first = observations(batch, rows, seen), gather(batch.seen_first, seen)
            before.append(compute(policy, obs, before[-1], first, dtype)[1])
        found.append((rows, tree_map(lambda *leaves: torch.stack(leaves, 1).cpu(), *before)))
    return in_order(found)


def _chosen(leaf: Tensor, row: Tensor) -> Tensor:
    return leaf[row.to(leaf.device)].cpu()
