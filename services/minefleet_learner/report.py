"""The numbers that explain one update."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from minefleet_learner.batch import Batch
from minefleet_learner.estimates import Estimates
from minefleet_learner.importance import weigh
from minefleet_learner.ppo import PPOLoss, explained_variance, masked_mean


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
    importance_weight_mean: float = math.nan
    """Of the policy before the update against the behaviour policy; likewise the next two. NaN where no pass was made
    for it."""
    importance_weight_max: float = math.nan
    effective_sample_size: float = math.nan
    """As a share of the steps, in (0, 1]."""
    skipped_steps: int = 0
    """Optimizer steps left out because something was not finite."""

    @property
    def is_trained(self) -> bool:
        """Whether at least one optimizer step was made."""
        return not math.isnan(self.grad_norm)


class Tally:
    """Adds up the numbers of an update's steps on the device, to be read once at the end."""

    def __init__(self) -> None:
        self._steps: list[Tensor] = []
        self._largest: list[Tensor] = []
        self._skipped = 0

    def skip(self) -> None:
        """Counts a step that was left out."""
        self._skipped += 1

    def add(self, losses: list[tuple[PPOLoss, float]], grad_norm: Tensor) -> None:
        """Adds an optimizer step.

        Args:
            losses: Of its micro-batches, each with its share of the steps.
            grad_norm: Before clipping.
        """
        parts = [
            torch.stack(
                (
                    loss.policy,
                    loss.value,
                    loss.entropy,
                    loss.kl_reference,
                    share * loss.approx_kl,
                    share * loss.clip_fraction,
                )
            )
            for loss, share in losses
        ]
        self._steps.append(torch.cat((torch.stack(parts).sum(0), grad_norm.unsqueeze(0))))
        self._largest.extend(loss.max_log_ratio for loss, _ in losses)

    def report(self, batch: Batch, estimates: Estimates, log_ratio_range: float) -> UpdateReport:
        """Means over the steps, and what the batch was like."""
        before = _before(batch, estimates) | _weights(batch, estimates, log_ratio_range)
        if not self._steps:
            return UpdateReport(**before, skipped_steps=self._skipped)
        policy, value, entropy, kl, approx_kl, clip_fraction, norm = torch.stack(self._steps).mean(0).tolist()
        return UpdateReport(
            policy_loss=policy,
            value_loss=value,
            entropy=entropy,
            reference_kl=kl,
            approx_kl=approx_kl,
            clip_fraction=clip_fraction,
            grad_norm=norm,
            ratio_max=math.exp(min(float(torch.stack(self._largest).max()), log_ratio_range)),
            skipped_steps=self._skipped,
            **before,
        )


def _before(batch: Batch, estimates: Estimates) -> dict[str, float]:
    centred = estimates.advantage - masked_mean(estimates.advantage, batch.mask)
    return {
        "explained_variance": float(explained_variance(estimates.value, estimates.target, batch.mask)),
        "advantage_std": float(masked_mean(centred.square(), batch.mask).sqrt()),
        "value_mean": float(masked_mean(estimates.value, batch.mask)),
    }


def _weights(batch: Batch, estimates: Estimates, log_ratio_range: float) -> dict[str, float]:
    if estimates.proximal_logp is None:
        return {}
    weights = weigh(estimates.proximal_logp - batch.behaviour_logp, batch.mask, log_ratio_range)
    return {
        "importance_weight_mean": weights.mean,
        "importance_weight_max": weights.largest,
        "effective_sample_size": weights.effective_sample_size,
    }
