"""Forward passes over parts of a batch.

A policy with memory runs over whole rows from their stored states, in pieces of `context_length`; gradients stop at the
borders of the pieces. For a policy without memory the real steps are lined up, so that padding costs nothing.

Shape legend: B = fragments, T = steps in the longest one, S = observations seen in the longest one; b = selected rows,
X = T or S, n = entries of the selected rows that are not padding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minefleet.policies import Policy, PolicyOutput
from minefleet.policies.encoders import AT_ONCE
from minefleet.policies.precision import compute
from minefleet.tree import Tree, flatten, tree_map
from minefleet_learner.batch import Batch

PASS_STEPS = AT_ONCE
"""Steps that a pass on the CPU takes at most without memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The observations that one pass takes: those of whole rows [b, X], or n real ones [n, 1]."""

    rows: Tensor
    """[b] int64."""
    seen: Tensor
    """[b, X] or [n, 1] int64, into a flattened [B, S]."""
    mask: Tensor
    """Likewise, bool, False at padding."""
    steps: Tensor
    """Likewise, into a flattened [B, T] where the selection is one of steps; else the same as `seen`."""


def has_memory(policy: Policy) -> bool:
    """Whether the policy carries state from step to step."""
    return bool(flatten(policy.initial_state(1)))


def rows_of_a_pass(policy: Policy, batch: Batch, most: int) -> int:
    """How many rows of a batch one pass takes, at most `most`. Sums over passes are the same for any number.

    A recurrent layer multiplies by the same weights for each step of time: it wants all the rows that it can have. What
    is below it, it encodes by parts.
    """
    if batch.mask.device.type != "cpu" or has_memory(policy):
        return most
    return min(most, max(1, PASS_STEPS // batch.mask.shape[1]))


def select_steps(batch: Batch, rows: Tensor, *, whole_rows: bool) -> Selection:
    """Selects the steps of some fragments."""
    steps = _flat_index(rows, batch.mask.shape[1])
    return _selection(rows, batch.position[rows], steps, batch.mask[rows], whole_rows)


def select_seen(batch: Batch, rows: Tensor, *, whole_rows: bool) -> Selection:
    """Selects all that was seen in some fragments, the observations after cuts included."""
    seen = _flat_index(rows, batch.seen_mask.shape[1])
    return _selection(rows, seen, seen, batch.seen_mask[rows], whole_rows)


def gather(tree: Tree, index: Tensor) -> Tree:
    """Takes entries of leaves [B, X, ...] at an index into a flattened [B, X]."""
    flat = index.flatten()
    # Indexing by brackets copies a frame element by element, twenty times as slowly.
    return tree_map(lambda leaf: leaf.flatten(0, 1).index_select(0, flat).unflatten(0, index.shape), tree)


def evaluate(
    policy: Policy,
    batch: Batch,
    selection: Selection,
    context_length: int,
    *,
    state: Tree | None = None,
    dtype: torch.dtype = torch.float32,
    burn_in: int = 0,
) -> PolicyOutput:
    """Runs the policy over a selection.

    Args:
        policy: What to run.
        batch: The data.
        selection: Which of it.
        context_length: Steps of a piece.
        state: Where a policy with memory begins, a tree of [b, ...]; none for the stored states.
        dtype: What the layers below the heads compute in.
        burn_in: Steps of a piece before the others; 0 for none.
    """
    obs, first = observations(batch, selection.rows, selection.seen), gather(batch.seen_first, selection.seen)
    if not has_memory(policy):
        return compute(policy, obs, {}, first, dtype)[0]
    state = state or stored_state(batch, selection.rows)
    outputs: list[PolicyOutput] = []
    for piece in pieces(first.shape[1], context_length, burn_in):
        seen = tree_map(lambda leaf, at=piece: leaf[:, at], obs)
        output, state = compute(policy, seen, state, first[:, piece], dtype)
        state = tree_map(torch.detach, state)
        outputs.append(output)
    return outputs[0] if len(outputs) == 1 else _concatenate(outputs)


def pieces(length: int, context_length: int, burn_in: int = 0) -> list[slice]:
    """Parts time: `burn_in` steps, if any, then `context_length` at a time."""
    starts = [*([0] if burn_in else []), *range(burn_in, length, context_length)]
    return [slice(start, end) for start, end in zip(starts, [*starts[1:], length], strict=True)]


def observations(batch: Batch, rows: Tensor, seen: Tensor) -> Tree:
    """What was seen in some rows.

    Args:
        batch: Where they are.
        rows: [b] int64.
        seen: [...] int64, into a flattened [B, S]; in those rows only.
    """
    if batch.unpacker is None:
        return gather(batch.seen, seen)
    width = batch.seen_mask.shape[1]
    order = torch.empty(len(batch), dtype=torch.int64, device=rows.device)
    order[rows] = torch.arange(len(rows), device=rows.device)
    return gather(batch.unpacker.take(rows).seen, order[seen // width] * width + seen % width)


def stored_state(batch: Batch, rows: Tensor) -> Tree:
    """The recurrent states before the first steps of rows [b]."""
    if batch.unpacker is None:
        return tree_map(lambda leaf: leaf[rows], batch.recurrent_state)
    return batch.unpacker.take(rows).recurrent_state


def acted_on(batch: Batch, rows_per_pass: int) -> Iterator[Tree]:
    """The observations of all steps, trees of [n, ...], some rows at a time."""
    passes = torch.split(torch.arange(len(batch), device=batch.mask.device), rows_per_pass)
    batch.announce(passes)
    for rows in passes:
        yield observations(batch, rows, batch.position[rows][batch.mask[rows]])


def _flat_index(rows: Tensor, width: int) -> Tensor:
    """[b, width]: where the entries of the rows lie in a flattened [B, width]."""
    return rows.unsqueeze(1) * width + torch.arange(width, device=rows.device)


def _selection(rows: Tensor, seen: Tensor, steps: Tensor, mask: Tensor, whole_rows: bool) -> Selection:
    if not whole_rows:
        seen, steps, mask = (index[mask].unsqueeze(1) for index in (seen, steps, mask))
    return Selection(rows=rows, seen=seen, mask=mask, steps=steps)


def _concatenate(outputs: Sequence[PolicyOutput]) -> PolicyOutput:
    """Joins pieces along time."""
    params = tree_map(lambda *leaves: torch.cat(leaves, 1), outputs[0].params, *(one.params for one in outputs[1:]))
    return PolicyOutput(params, torch.cat([one.value for one in outputs], 1))
