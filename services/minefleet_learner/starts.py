"""The recurrent states before the sequences that a policy with memory trains on.

The state before a fragment is stored with it. Those before its later sequences are computed once an iteration, under
the weights that it begins with: no gradient passes a sequence's start anyway.

Shape legend: B = fragments, W = windows of a fragment.
"""

from collections.abc import Sequence

import torch

from minefleet.policies import Policy
from minefleet.policies.precision import compute
from minefleet.tree import Tree, tree_map
from minefleet_learner.batch import Batch
from minefleet_learner.forward import gather, observations, passes, stored_state


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
    found: list[Tree] = []
    for rows in passes(batch, rows_per_pass):
        before = [tree_map(lambda leaf, at=rows: leaf[at], state) or stored_state(batch, rows)]
        for part in parts[:-1]:
            seen = batch.position[rows, part]
            obs, first = observations(batch, rows, seen), gather(batch.seen_first, seen)
            before.append(compute(policy, obs, before[-1], first, dtype)[1])
        found.append(tree_map(lambda *leaves: torch.stack(leaves, 1).cpu(), *before))
    return tree_map(lambda *leaves: torch.cat(leaves), *found)
