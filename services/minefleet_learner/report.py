"""The numbers that explain one update."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from minefleet.policies.moments import Moments, moments_of
from minefleet_learner.batch import Batch
from minefleet_learner.estimates import Estimates
from minefleet_learner.ppo import PPOLoss
from minefleet_learner.ranks import Ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateReport:
    """What an update did: means over its optimizer steps. NaN where there was nothing to average."""

    policy_loss: float = math.nan
    value_loss: float = math.nan
    """½·MSE in normalised units."""
    entropy: float = math.nan
    reference_kl: float = math.nan
    approx_kl: float = math.nan
    clip_fraction: float = math.nan
    grad_norm: float = math.nan
    """Before clipping."""
    ratio_max: float = math.nan
    """Largest importance ratio or inverse of one."""
    explained_variance: float = math.nan
    """Of the values before the update."""
    advantage_std: float = math.nan
    """In reward units."""
    value_mean: float = math.nan
    """In reward units, before the update."""
    skipped_steps: int = 0
    """Optimizer steps left out because something was not finite."""

    @property
    def is_trained(self) -> bool:
        """Whether at least one optimizer step was made."""
        return not math.isnan(self.grad_norm)


@dataclass(frozen=True, slots=True)
class Before:
    """Moments of the steps of all ranks before they are trained on, in reward units; [] float64 each."""

    target: Moments
    advantage: Moments
    value: Moments
    error: Moments
    """Of target - value."""

    @property
    def explained_variance(self) -> float:
        """1 - Var(target - value) / Var(target): 1 is perfect, 0 no better than a constant; 0 where nothing varies."""
        total = float(self.target.variance)
        return 1 - float(self.error.variance) / total if total > 0 else 0.0


def look_at(batch: Batch | None, estimates: Estimates | None, ranks: Ranks, device: torch.device) -> Before:
    """Takes the moments of a batch, of which this rank has a part on its device or, with None, nothing."""
    rows = torch.zeros(0, 4, device=device)
    if batch is not None and estimates is not None:
        target, value = estimates.target, estimates.value
        rows = torch.stack((target, estimates.advantage, value, target - value), -1)[batch.mask]
    whole = ranks.merge(moments_of(rows))
    return Before(*(Moments(count=whole.count, mean=whole.mean[at], spread=whole.spread[at]) for at in range(4)))


PARTS = 6
"""Numbers of a report that add up over micro-batches."""


class Tally:
    """Adds up the numbers of an update's steps on the device, to be read once at the end."""

    def __init__(self) -> None:
        self._steps: list[Tensor] = []
        self._largest: list[Tensor] = []
        self._skipped = 0

    def skip(self) -> None:
        """Counts a step that was left out."""
        self._skipped += 1

    def add(self, sums: Tensor, grad_norm: Tensor, largest: Sequence[Tensor]) -> None:
        """Adds an optimizer step.

        Args:
            sums: `parts` of its micro-batches, added up over all ranks.
            grad_norm: Before clipping.
            largest: `max_log_ratio` of this rank's micro-batches.
        """
        self._steps.append(torch.cat((sums, grad_norm.unsqueeze(0))))
        self._largest.extend(largest)

    def report(self, before: Before, ranks: Ranks, log_ratio_range: float) -> UpdateReport:
        """Means over the steps, and what the batch was like. Every rank calls it."""
        report = UpdateReport(
            explained_variance=before.explained_variance,
            advantage_std=float(before.advantage.variance.sqrt()),
            value_mean=float(before.value.mean),
            skipped_steps=self._skipped,
        )
        if not self._steps:
            return report
        largest = ranks.largest(torch.stack([*self._largest, torch.zeros_like(self._steps[0][0])]).max())
        policy, value, entropy, kl, approx_kl, clip_fraction, norm = torch.stack(self._steps).mean(0).tolist()
        return replace(
            report,
            policy_loss=policy,
            value_loss=value,
            entropy=entropy,
            reference_kl=kl,
            approx_kl=approx_kl,
            clip_fraction=clip_fraction,
            grad_norm=norm,
            ratio_max=math.exp(min(float(largest), log_ratio_range)),
        )


def parts(loss: PPOLoss, share: float) -> Tensor:
    """[`PARTS`], what a micro-batch with this share of its step's steps adds to the report."""
    return torch.stack(
        (
            loss.policy,
            loss.value,
            loss.entropy,
            loss.kl_reference,
            share * loss.approx_kl,
            share * loss.clip_fraction,
        )
    )
