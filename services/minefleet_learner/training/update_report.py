"""The numbers that explain one update."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateReport:
    """The results of an update: means over its optimizer steps. NaN where there was nothing to average."""

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
    head_entropy: Mapping[str, float] = field(default_factory=dict)
    """Of each named part of an action; they add up to `entropy`."""
    auxiliary: Mapping[str, float] = field(default_factory=dict)
    """The trainer's own losses by name."""
    skipped_steps: int = 0
    """Optimizer steps left out because something was not finite."""
    optimizer_steps: int = 0
    """Taken; fewer than all where something was not finite or `target_kl` ended the epochs."""
    burn_in_steps: int = 0
    """Steps of the batch that only warmed recurrent states up."""

    @property
    def is_trained(self) -> bool:
        """Whether at least one optimizer step was made."""
        return not math.isnan(self.grad_norm)
