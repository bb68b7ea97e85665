"""Values, advantages and value targets of a batch, before it is trained on.

Shape legend: B = fragments, T = steps in the longest one, S = observations seen in the longest one, W = sequences of a
fragment.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minefleet.config import TrainConfig
from minefleet.core.tree import Tree
from minefleet.policies import Policy
from minefleet_learner.algorithms.fragment_chain_advantages import chain, chain_vtrace
from minefleet_learner.data.batch import Batch
from minefleet_learner.data.burn_in_mask import burned_in
from minefleet_learner.data.sequence_windows import sequences
from minefleet_learner.targets.forward_passes import (
    compute_dtype,
    evaluate,
    gather,
    has_memory,
    in_order,
    passes,
    rows_of_a_pass,
    select_seen,
)
from minefleet_learner.targets.sequence_start_states import StartCollector


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimates:
    """A rank's part of an iteration, before it is trained on; [B, T] float32 each where not said, 0 at padding."""

    batch: Batch
    trained: Tensor
    """[B, T] bool, False at padding and at steps that only warm the state up."""
    value: Tensor
    """V(sₜ) in reward units."""
    advantage: Tensor
    """Âₜ in reward units, not normalised."""
    target: Tensor
    """V̂ₜ in reward units."""
    proximal_logp: Tensor | None
    """ln π(aₜ|sₜ) under the weights at the start of the iteration; None where no pass was made for it."""
    start: Tree
    """Tree of [B, W, ...] on the CPU: the states before `sequences`; {} where no pass was made, or none is wanted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recomputed:
    """The current weights' outputs for a batch, [B, T] float32 each; 0 at padding."""

    value: Tensor
    """V(sₜ) in reward units."""
    next_value: Tensor
    """V(sₜ₊₁) in reward units, 0 where the step is terminated."""
    logp: Tensor
    """ln π(aₜ|sₜ)."""
    start: Tree
    """See `Estimates`."""


@torch.no_grad()
def estimate(policy: Policy, batch: Batch, config: TrainConfig, *, burn_in: int = 0) -> Estimates:
    """Estimates advantages over chained fragments, with the values that `gae_values` names.

    The weights are asked once, for values and log-probabilities together; with recorded values and `clip`, not at all.
    The first `burn_in` steps of a fragment are not trained on.
    """
    asked = config.gae_values == "recomputed" or config.off_policy != "clip"
    current = recompute(policy, batch, config) if asked else None
    proximal_logp = current.logp if current else None
    if current and config.gae_values == "recomputed":
        value, next_value = current.value, current.next_value
    else:
        value, next_value = batch.behaviour_value, batch.next_value
    steps = steps_of(batch, value, next_value)
    if config.off_policy == "vtrace" and current:
        advantage, target = _vtrace(batch, steps, current.logp, config)
    else:
        advantage = chain(batch.names, **steps, discount=config.discount, gae_lambda=config.gae_lambda)
        target = advantage + value
    return Estimates(
        batch=batch,
        trained=batch.mask & ~burned_in(batch.first, burn_in),
        value=value,
        advantage=advantage,
        target=target,
        proximal_logp=proximal_logp,
        start=current.start if current else {},
    )


@torch.no_grad()
def recompute(policy: Policy, batch: Batch, config: TrainConfig) -> Recomputed:
    """Runs the current weights over all that was seen, from the stored recurrent states."""
    value, logp = (torch.zeros_like(batch.seen_first, dtype=batch.reward.dtype) for _ in range(2))
    whole_rows, step_at = has_memory(policy), _step_at(batch)
    most = config.inference_batch_size_per_gpu or config.batch_size_per_gpu
    parts = sequences(batch.mask.shape[1], config) if whole_rows else []
    starts: list[tuple[Tensor, Tree]] = []
    for rows in passes(batch, rows_of_a_pass(policy, batch, most), whole_rows=whole_rows):
        selection = select_seen(batch, rows, whole_rows=whole_rows)
        if len(parts) > 1:
            wayside = StartCollector(batch, rows, parts)
            output = evaluate(policy, batch, selection, wayside.parts, compute_dtype(config), wayside.record)
            starts.append((rows, wayside.states()))
        else:
            output = evaluate(policy, batch, selection, [slice(0, value.shape[1])], compute_dtype(config))
        value.view(-1)[selection.seen] = policy.value_norm.denormalize(output.value)
        action = gather(batch.action, step_at[selection.seen])
        logp.view(-1)[selection.seen] = policy.action_head.logp(output.params, action)
    after = (batch.position + 1).clamp_max(value.numel() - 1)
    return Recomputed(
        value=gather(value, batch.position).masked_fill(~batch.mask, 0.0),
        next_value=gather(value, after).masked_fill(~batch.mask | batch.terminated, 0.0),
        logp=gather(logp, batch.position).masked_fill(~batch.mask, 0.0),
        start=in_order(starts) if starts else {},
    )


def _step_at(batch: Batch) -> Tensor:
    """[B * S] int64: which of the B * T steps saw an observation; 0 where none did, whose result is not read."""
    step_at = torch.zeros_like(batch.seen_first, dtype=torch.int64).flatten()
    step_at[batch.position[batch.mask]] = batch.mask.flatten().nonzero().squeeze(1)
    return step_at


def _vtrace(batch: Batch, steps: dict[str, Any], logp: Tensor, config: TrainConfig) -> tuple[Tensor, Tensor]:
    traced = chain_vtrace(
        batch.names,
        **steps,
        log_ratio=logp - batch.behaviour_logp,
        discount=config.discount,
        gae_lambda=config.gae_lambda,
        rho_bar=config.vtrace_rho_bar,
        c_bar=config.vtrace_c_bar,
    )
    return traced.advantage, traced.target


@torch.no_grad()
def steps_of(batch: Batch, value: Tensor, next_value: Tensor) -> dict[str, Any]:
    """The arguments of `chain` that are [B, T] for a batch, with these values in reward units."""
    return {
        "reward": batch.reward,
        "value": value,
        "next_value": next_value,
        "terminated": batch.terminated,
        "truncated": cut_between(batch),
        "mask": batch.mask,
        "duration": batch.duration,
    }


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
