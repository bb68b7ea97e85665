"""Values, advantages and value targets of a batch, before it is trained on.

Shape legend: B = fragments, T = steps in the longest one, S = observations seen in the longest one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from minefleet.config import TrainConfig
from minefleet.policies import Policy
from minefleet_learner.advantages import chain
from minefleet_learner.batch import Batch
from minefleet_learner.forward import evaluate, gather, has_memory, select_seen


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimates:
    """[B, T] float32 each, in reward units; 0 at padding."""

    value: Tensor
    """V(sₜ)."""
    advantage: Tensor
    """Âₜ, not normalised."""
    target: Tensor
    """V̂ₜ = Âₜ + V(sₜ)."""


@torch.no_grad()
def estimate(policy: Policy, batch: Batch, config: TrainConfig) -> Estimates:
    """Estimates advantages by GAE over chained fragments, with the values that `gae_values` names."""
    if config.gae_values == "recomputed":
        value, next_value = recomputed_values(policy, batch, config)
    else:
        value, next_value = batch.behaviour_value, batch.next_value
    advantage = chain(
        batch.names,
        reward=batch.reward,
        value=value,
        next_value=next_value,
        terminated=batch.terminated,
        truncated=cut_between(batch),
        mask=batch.mask,
        discount=config.discount,
        gae_lambda=config.gae_lambda,
    )
    return Estimates(value=value, advantage=advantage, target=advantage + value)


@torch.no_grad()
def recomputed_values(policy: Policy, batch: Batch, config: TrainConfig) -> tuple[Tensor, Tensor]:
    """V(sₜ) and V(sₜ₊₁) under the current weights, from the stored recurrent states.

    Where a step is terminated, V(sₜ₊₁) is 0.
    """
    seen = torch.zeros_like(batch.seen_first, dtype=batch.reward.dtype)
    whole_rows = has_memory(policy)
    rows_per_pass = config.inference_batch_size_per_gpu or config.batch_size_per_gpu
    for rows in torch.split(torch.arange(len(batch), device=seen.device), rows_per_pass):
        selection = select_seen(batch, rows, whole_rows=whole_rows)
        output = evaluate(policy, batch, selection, config.context_length)
        seen.view(-1)[selection.seen] = policy.value_norm.denormalize(output.value)
    after = (batch.position + 1).clamp_max(seen.numel() - 1)
    value = gather(seen, batch.position).masked_fill(~batch.mask, 0.0)
    return value, gather(seen, after).masked_fill(~batch.mask | batch.terminated, 0.0)


def cut_between(batch: Batch) -> Tensor:
    """`truncated` [B, T], and also the last steps after which the environment failed: the next fragment starts afresh.

    A failure right behind a fragment is seen only in the next one, whose first step is `first`.
    """
    truncated = batch.truncated.clone()
    row_of = {name: row for row, name in enumerate(batch.names)}
    for row in torch.nonzero(batch.first[:, 0]).flatten().tolist():
        stream, sequence = batch.names[row]
        before = row_of.get((stream, sequence - 1))
        if before is not None:
            truncated[before, int(batch.mask[before].sum()) - 1] = True
    return truncated
