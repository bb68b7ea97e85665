"""Adds up the numbers of an update, over its optimizer steps and all ranks."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from minefleet_learner.algorithms.ppo import PPOLoss
from minefleet_learner.distributed.ranks import Ranks
from minefleet_learner.targets.batch_statistics import BatchStats
from minefleet_learner.training.update_report import UpdateReport

PARTS = 6
"""Numbers of a report that add up over micro-batches, beside the entropy of each head."""
APPROX_KL = 4
"""Place of approx_kl among them."""


class UpdateTally:
    """Adds up the numbers of an update's steps on the device, to be read once at the end."""

    def __init__(self, heads: Sequence[str]) -> None:
        """Begins with nothing; `heads` are the names of the parts of an action."""
        self._heads = tuple(heads)
        self._steps: list[Tensor] = []
        self._largest: list[Tensor] = []
        self.skipped = 0
        """Steps that were left out."""

    def zeros(self, like: Tensor) -> Tensor:
        """The sum of no `parts`."""
        return like.new_zeros(PARTS + len(self._heads))

    def parts(self, loss: PPOLoss, share: float) -> Tensor:
        """The contribution to the report of a micro-batch with this share of its step's steps."""
        return torch.stack(
            (
                loss.policy,
                loss.value,
                loss.entropy,
                loss.kl_reference,
                share * loss.approx_kl,
                share * loss.clip_fraction,
                *(loss.head_entropy[name] for name in self._heads),
            )
        )

    def add(self, sums: Tensor, grad_norm: Tensor, largest: Sequence[Tensor]) -> None:
        """Adds an optimizer step.

        Args:
            sums: `parts` of its micro-batches, added up over all ranks.
            grad_norm: Before clipping.
            largest: `max_log_ratio` of this rank's micro-batches.
        """
        self._steps.append(torch.cat((grad_norm.unsqueeze(0), sums)))
        self._largest.extend(largest)

    def report(self, before: BatchStats, ranks: Ranks, log_ratio_range: float) -> UpdateReport:
        """Means over the steps, and what the batch was like. Every rank calls it."""
        has_weights = before.weights.steps > 0
        report = UpdateReport(
            explained_variance=before.explained_variance,
            advantage_std=float(before.advantage.variance.sqrt()),
            value_mean=float(before.value.mean),
            importance_weight_mean=before.weights.mean,
            importance_weight_max=before.weights.largest if has_weights else math.nan,
            effective_sample_size=before.weights.effective_sample_size,
            skipped_steps=self.skipped,
            optimizer_steps=len(self._steps),
            burn_in_steps=before.burn_in_steps,
        )
        if not self._steps:
            return report
        largest = ranks.largest(torch.stack([*self._largest, torch.zeros_like(self._steps[0][0])]).max())
        norm, policy, value, entropy, kl, approx_kl, clip_fraction, *heads = torch.stack(self._steps).mean(0).tolist()
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
            head_entropy=dict(zip(self._heads, heads, strict=True)),
        )
