"""One iteration's update: estimates, then epochs of optimizer steps.

    estimate ─▶ rescale the value head ─▶ normalise ─▶ epochs: shuffle ─▶ micro-batches ─▶ objective
                                                                               │ every gradient_accumulation
                                                                               ▼
                        statistics of observations ◀─ at the end ─────────── stepper

A step whose loss or gradient is not finite is left out. A batch that brings something that is not finite is left out
whole, and counts as one such step.

Shape legend: B = fragments, T = steps in the longest one.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from minefleet.config import TrainConfig
from minefleet.policies import Policy
from minefleet_learner.batch import Batch, Name
from minefleet_learner.estimates import Estimates, estimate
from minefleet_learner.forward import gather
from minefleet_learner.objective import Objective, Prepared
from minefleet_learner.ppo import normalize
from minefleet_learner.report import Tally, UpdateReport
from minefleet_learner.schedule import Rates
from minefleet_learner.stepping import Stepper


class Updater:
    """A policy, its optimizer and its reference, and how they are trained."""

    def __init__(
        self, policy: Policy, optimizer: torch.optim.Optimizer, config: TrainConfig, reference: Policy | None
    ) -> None:
        self.policy = policy
        self.optimizer = optimizer
        self.reference = reference
        self._config = config
        self._objective = Objective(policy, config, reference)
        self._stepper = Stepper(policy, optimizer, config)

    def update(self, batch: Batch, rates: Rates) -> UpdateReport:
        """Trains on a batch.

        Raises:
            NonFiniteError: If the last `max_bad_steps` steps were not finite; names the fragments.
        """
        self.policy.eval()
        estimates = estimate(self.policy, batch, self._config)
        if bad := not_finite(batch, estimates):
            self._stepper.leave_out(bad)
            return UpdateReport(skipped_steps=1)
        prepared = self._prepare(batch, estimates)
        self._set_rates(rates)
        self.policy.train()
        tally, loss_of = Tally(), partial(self._objective.loss, prepared, rates)
        for group in self._groups(len(batch)):
            self._stepper.step(group, prepared.lengths, loss_of, batch.names, tally)
        self.policy.eval()
        if self.policy.obs_norm is not None:
            self.policy.obs_norm.update(gather(batch.seen, batch.position[batch.mask]))
        return tally.report(batch, estimates, self._config.log_ratio_range)

    def _prepare(self, batch: Batch, estimates: Estimates) -> Prepared:
        """Takes the targets into the value statistics, and changes units."""
        norm = self.policy.value_norm
        norm.update(estimates.target[batch.mask], self.policy.value_head)
        advantage = estimates.advantage
        if self._config.normalize_advantage_full_batch:
            advantage = normalize(advantage, batch.mask)
        target, anchor = norm.normalize(estimates.target), norm.normalize(estimates.value)
        return Prepared(
            batch=batch,
            lengths=batch.mask.sum(1),
            numbers=torch.stack(
                (batch.behaviour_logp, self._proximal_logp(batch, estimates), advantage, target, anchor), -1
            ),
        )

    def _proximal_logp(self, batch: Batch, estimates: Estimates) -> Tensor:
        """[B, T] of the policy from which the update may not go far: with `clip`, the behaviour policy."""
        if self._config.off_policy == "clip" or estimates.proximal_logp is None:
            return batch.behaviour_logp
        return estimates.proximal_logp

    def _set_rates(self, rates: Rates) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rates.learning_rate
        head = {id(parameter) for parameter in self.policy.value_head.parameters()}
        for parameter in self.policy.parameters():
            parameter.requires_grad_(not rates.warming_up or id(parameter) in head)

    def _groups(self, fragments: int) -> Iterator[Sequence[Tensor]]:
        """Per optimizer step, the rows of its micro-batches; shuffled anew each epoch."""
        device = self.policy.value_norm.mean.device
        for _ in range(self._config.epochs_per_iteration):
            rows = torch.split(torch.randperm(fragments).to(device), self._config.batch_size_per_gpu)
            for start in range(0, len(rows), self._config.gradient_accumulation):
                yield rows[start : start + self._config.gradient_accumulation]


def not_finite(batch: Batch, estimates: Estimates) -> list[Name]:
    """The fragments with a step that cannot be trained on."""
    fields = [batch.reward, batch.behaviour_logp, estimates.value, estimates.target]
    if estimates.proximal_logp is not None:
        fields.append(estimates.proximal_logp)
    bad = (~torch.isfinite(torch.stack(fields)).all(0) & batch.mask).any(1)
    return [batch.names[row] for row in torch.nonzero(bad).flatten().tolist()]
