"""Measures the batch that an update is about to train on, over its steps and all ranks."""

from dataclasses import dataclass

import torch

from minefleet.policies.layers.mergeable_moments import Moments, moments_of
from minefleet_learner.algorithms.importance_weight_statistics import Weights, weigh
from minefleet_learner.distributed.ranks import Ranks
from minefleet_learner.targets.value_and_advantage_estimates import Estimates


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchStats:
    """Statistics of the steps of all ranks before they are trained on, in reward units; moments are [] float64."""

    target: Moments
    advantage: Moments
    value: Moments
    error: Moments
    """Of target - value."""
    weights: Weights
    """Of the policy against the behaviour policy; of no steps where no pass was made for it."""
    burn_in_steps: int

    @property
    def explained_variance(self) -> float:
        """1 - Var(target - value) / Var(target): 1 is perfect, 0 no better than a constant; 0 where nothing varies."""
        total = float(self.target.variance)
        return 1 - float(self.error.variance) / total if total > 0 else 0.0


def measure_batch(part: Estimates | None, ranks: Ranks, device: torch.device, log_ratio_range: float) -> BatchStats:
    """Measures the batch of all ranks; `part` is this one's, on its device. Every rank calls it."""
    rows, weights, burned_in = torch.zeros(0, 4, device=device), Weights(), 0
    if part is not None:
        columns = (part.target, part.advantage, part.value, part.target - part.value)
        rows, burned_in = torch.stack(columns, -1)[part.trained], int((part.batch.mask & ~part.trained).sum())
        if part.proximal_logp is not None:
            weights = weigh(part.proximal_logp - part.batch.behaviour_logp, part.trained, log_ratio_range)
    whole = ranks.merge(moments_of(rows))
    sums = torch.tensor([burned_in, weights.steps, weights.total, weights.squares], dtype=torch.float64)
    ranks.sum([sums])
    burn_in_steps, steps, total, squares = sums.tolist()
    target, advantage, value, error = (
        Moments(count=whole.count, mean=whole.mean[at], spread=whole.spread[at]) for at in range(4)
    )
    return BatchStats(
        target=target,
        advantage=advantage,
        value=value,
        error=error,
        weights=Weights(
            steps=steps,
            total=total,
            squares=squares,
            largest=float(ranks.largest(torch.tensor(weights.largest, dtype=torch.float64))),
        ),
        burn_in_steps=int(burn_in_steps),
    )
