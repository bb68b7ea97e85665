"""Forward passes over parts of a batch.

What is trained runs over pieces: steps without memory, sequences with it, from the states before them. What is only
asked runs over whole fragments from their stored states, part by part; without memory the real
observations are lined up, so that padding costs nothing.

Shape legend: B = fragments, T = steps in the longest one, S = observations seen in the longest one; b = selected rows,
n = observations of the selected rows that are not padding, p = pieces, L = steps of the longest piece.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minefleet.config import TrainConfig
from minefleet.core.tree import Tree, flatten, tree_map
from minefleet.policies import Policy, PolicyOutput
from minefleet.policies.layers.encoders import ENCODE_CHUNK_STEPS
from minefleet.policies.precision import DTYPES, compute
from minefleet_learner.data.batch import Batch
from minefleet_learner.data.minibatch_sampling import evenly

PASS_STEPS = ENCODE_CHUNK_STEPS
"""Steps that a pass on the CPU takes at most without memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """All that was seen in some rows, S in the longest of them: [b, S], or n real observations [n, 1]."""

    rows: Tensor
    """[b] int64."""
    seen: Tensor
    """[b, S] or [n, 1] int64, into a flattened [B, S]."""
    mask: Tensor
    """Likewise, bool, False at padding."""


def compute_dtype(config: TrainConfig) -> torch.dtype:
    """The dtype of the layers below the heads; every pass of the learner has it, so that they agree."""
    return DTYPES[config.amp_dtype] if config.use_amp else torch.float32


def has_memory(policy: Policy) -> bool:
    """Whether the policy carries state from step to step."""
    return bool(flatten(policy.initial_state(1)))


def rows_of_a_pass(policy: Policy, batch: Batch, most: int) -> int:
    """The number of rows of a batch for one pass, at most `most`. Sums over passes are the same for any number.

    A recurrent layer multiplies by the same weights for each step of time: it wants all the rows that it can have. What
    is below it, it encodes by parts.
    """
    if batch.mask.device.type != "cpu" or has_memory(policy):
        return most
    return min(most, max(1, PASS_STEPS // batch.mask.shape[1]))


def passes(batch: Batch, most: int, *, whole_rows: bool = False) -> Iterator[Tensor]:
    """All rows, at most so many [b] at a time; for passes over `whole_rows` those of like length together."""
    for pool in batch.pools(torch.arange(len(batch), device=batch.mask.device)):
        if whole_rows:
            parts = evenly(batch.seen_mask[pool].sum(1), most)
            yield from (pool[part.to(pool.device)] for part in parts)
        else:
            yield from torch.split(pool, most)


def in_order(found: Sequence[tuple[Tensor, Tree]]) -> Tree:
    """Joins what passes found, their rows [b] and trees of [b, ...] on the CPU, in the order of all rows."""
    order = torch.cat([rows for rows, _ in found]).cpu().argsort()
    return tree_map(lambda *leaves: torch.cat(leaves)[order], *(tree for _, tree in found))


def select_seen(batch: Batch, rows: Tensor, *, whole_rows: bool) -> Selection:
    """Selects all that was seen in some fragments, the observations after cuts included."""
    width, longest = batch.seen_mask.shape[1], int(batch.seen_mask[rows].sum(1).max())
    seen = rows.unsqueeze(1) * width + torch.arange(longest, device=rows.device)
    mask = batch.seen_mask[rows, :longest]
    if not whole_rows:
        seen, mask = (index[mask].unsqueeze(1) for index in (seen, mask))
    return Selection(rows=rows, seen=seen, mask=mask)


def gather(tree: Tree, index: Tensor) -> Tree:
    """Gathers entries of leaves [B, X, ...] at an index into a flattened [B, X]."""
    flat = index.flatten()
    # Indexing by brackets copies a frame element by element, twenty times as slowly.
    return tree_map(lambda leaf: leaf.flatten(0, 1).index_select(0, flat).unflatten(0, index.shape), tree)


def evaluate(
    policy: Policy,
    batch: Batch,
    selection: Selection,
    parts: Sequence[slice],
    dtype: torch.dtype = torch.float32,
    on_part: Callable[[int, Tree], None] = lambda _, __: None,
) -> PolicyOutput:
    """Runs the policy over all that was seen in some rows.

    Args:
        policy: What to run.
        batch: The data.
        selection: Which of it.
        parts: Of S, those that a policy with memory runs over one after the other.
        dtype: What the layers below the heads compute in.
        on_part: Called before each part with where it begins and the state there, a tree of [b, ...].
    """
    obs, first = observations(batch, selection.rows, selection.seen), gather(batch.seen_first, selection.seen)
    if not has_memory(policy):
        return compute(policy, obs, {}, first, dtype)[0]
    state = stored_state(batch, selection.rows)
    outputs: list[PolicyOutput] = []
    for part in parts:
        on_part(part.start, state)
        seen = tree_map(lambda leaf, at=part: leaf[:, at], obs)
        output, state = compute(policy, seen, state, first[:, part], dtype)
        outputs.append(output)
    return outputs[0] if len(outputs) == 1 else _concatenate(outputs)


def evaluate_pieces(
    policy: Policy, batch: Batch, rows: Tensor, steps: Tensor, state: Tree, dtype: torch.dtype = torch.float32
) -> PolicyOutput:
    """Runs the policy over pieces.

    Args:
        policy: What to run.
        batch: The data.
        rows: [p] int64, the fragment of each piece.
        steps: [p, L] int64, into a flattened [B, T].
        state: Where a policy with memory begins, a tree of [p, ...]; {} for the stored states.
        dtype: What the layers below the heads compute in.
    """
    seen = gather(batch.position, steps)
    obs, first = observations(batch, rows, seen), gather(batch.seen_first, seen)
    return compute(policy, obs, state or stored_state(batch, rows), first, dtype)[0]


def observations(batch: Batch, rows: Tensor, seen: Tensor) -> Tree:
    """The observations of some rows.

    Args:
        batch: Where they are.
        rows: [b] int64.
        seen: [...] int64, into a flattened [B, S]; in those rows only.
    """
    if batch.unpacker is None:
        return gather(batch.seen, seen)
    held, width = batch.unpacker.take(rows), batch.seen_mask.shape[1]
    return gather(held.large.seen, held.place[seen // width] * width + seen % width)


def stored_state(batch: Batch, rows: Tensor) -> Tree:
    """The recurrent states before the first steps of rows [b]."""
    if batch.unpacker is None:
        return tree_map(lambda leaf: leaf[rows], batch.recurrent_state)
    held = batch.unpacker.take(rows)
    return tree_map(lambda leaf: leaf[held.place[rows]], held.large.recurrent_state)


def acted_on(batch: Batch, rows_per_pass: int) -> Iterator[Tree]:
    """The observations of all steps, trees of [n, ...], some rows at a time."""
    for rows in passes(batch, rows_per_pass):
        yield observations(batch, rows, batch.position[rows][batch.mask[rows]])


def _concatenate(outputs: Sequence[PolicyOutput]) -> PolicyOutput:
    """Joins outputs along time."""
    params = tree_map(lambda *leaves: torch.cat(leaves, 1), outputs[0].params, *(one.params for one in outputs[1:]))
    return PolicyOutput(params, torch.cat([one.value for one in outputs], 1))
