"""One iteration's update: estimates, then epochs of optimizer steps.

    estimate ─▶ rescale the value head ─▶ normalise ─▶ epochs: shuffle ─▶ micro-batches ─▶ objective
                                                                               │ every gradient_accumulation
                                                                               ▼
                        statistics of observations ◀─ at the end ─────────── stepper

A step whose loss or gradient is not finite is left out. A batch that brings something that is not finite is left out
whole, and counts as one such step.

With several ranks each has a part of the fragments. What is summed or averaged is so over all of them: the statistics,
the divisor of the losses, the gradients of a step. A step is left out on all ranks together.

Shape legend: B = fragments, T = steps in the longest one.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from minefleet.config import TrainConfig
from minefleet.policies import Policy
from minefleet_learner.batch import Batch, Name
from minefleet_learner.estimates import Estimates, estimate
from minefleet_learner.forward import gather
from minefleet_learner.objective import Objective, Prepared
from minefleet_learner.ppo import PPOLoss, normalize
from minefleet_learner.ranks import ALONE, Ranks, RanksError
from minefleet_learner.report import Before, Tally, UpdateReport, look_at
from minefleet_learner.schedule import Rates
from minefleet_learner.snapshot import digest
from minefleet_learner.stepping import Stepper


class Updater:
    """A policy, its optimizer and its reference, and how they are trained, on this rank and the others together."""

    def __init__(
        self,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        config: TrainConfig,
        reference: Policy | None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.policy = policy
        self.optimizer = optimizer
        self.reference = reference
        self._config = config
        self._ranks = ranks
        self._objective = Objective(policy, config, reference)
        self._stepper = Stepper(policy, optimizer, config, ranks)

    def update(self, batch: Batch | None, rates: Rates) -> UpdateReport:
        """Trains on a batch, of which this rank has a part, or nothing. Every rank calls it, with the same rates.

        Raises:
            NonFiniteError: If the last `max_bad_steps` steps were not finite; names the fragments.
            RanksError: If the ranks differ in their weights, or one is gone.
        """
        self.policy.eval()
        estimates = None if batch is None else estimate(self.policy, batch, self._config)
        fragments, bad = self._survey(batch, estimates)
        if bad:
            self._stepper.leave_out(bad)
            return UpdateReport(skipped_steps=1)
        if not fragments:
            return UpdateReport()
        before = look_at(batch, estimates, self._ranks, self.policy.value_norm.mean.device)
        self.policy.value_norm.absorb(before.target, self.policy.value_head)
        self._set_rates(rates)
        self.policy.train()
        tally = self._train(self._prepare(batch, estimates, before), rates, fragments)
        self.policy.eval()
        self._absorb_observations(batch)
        return tally.report(before, self._ranks, self._config.log_ratio_range)

    def _survey(self, batch: Batch | None, estimates: Estimates | None) -> tuple[int, list[Name]]:
        """How many fragments there are on all ranks, and which of them cannot be trained on."""
        bad = [] if batch is None or estimates is None else not_finite(batch, estimates)
        if self._ranks.is_alone:
            return 0 if batch is None else len(batch), bad
        mine = {"fragments": 0 if batch is None else len(batch), "bad": bad, "digest": digest(self.policy.state_dict())}
        all_ranks = self._ranks.gather(mine)
        if len({one["digest"] for one in all_ranks}) > 1:
            raise RanksError("the weights differ between ranks; all have to start again from the checkpoint")
        names = [(stream, sequence) for one in all_ranks for stream, sequence in one["bad"]]
        return sum(one["fragments"] for one in all_ranks), names

    def _prepare(self, batch: Batch | None, estimates: Estimates | None, before: Before) -> Prepared | None:
        """Changes units; None where this rank has nothing."""
        if batch is None or estimates is None:
            return None
        norm, advantage = self.policy.value_norm, estimates.advantage
        if self._config.normalize_advantage_full_batch:
            advantage = normalize(advantage, batch.mask, before.advantage)
        target, anchor = norm.normalize(estimates.target), norm.normalize(estimates.value)
        return Prepared(
            batch=batch,
            numbers=torch.stack((batch.behaviour_logp, advantage, target, anchor), -1),
        )

    def _train(self, prepared: Prepared | None, rates: Rates, fragments: int) -> Tally:
        """Takes the optimizer steps of all epochs; a rank without fragments takes them with the others' gradients."""
        names = [] if prepared is None else prepared.batch.names
        lengths = torch.zeros(0, dtype=torch.int64) if prepared is None else prepared.batch.mask.sum(1).cpu()
        groups = list(self._groups(len(names), fragments))
        counts = torch.tensor([sum(int(lengths[rows].sum()) for rows in group) for group in groups])
        self._ranks.sum([counts])
        tally = Tally()

        def loss_of(rows: Tensor, count: float) -> PPOLoss:
            assert prepared is not None
            return self._objective.loss(prepared, rates, rows.to(prepared.numbers.device), count)

        for group, count in zip(groups, counts.tolist(), strict=True):
            self._stepper.step(group, lengths, count, loss_of, names, tally)
        return tally

    def _absorb_observations(self, batch: Batch | None) -> None:
        norm = self.policy.obs_norm
        if norm is not None:
            acted_on = None if batch is None else gather(batch.seen, batch.position[batch.mask])
            norm.absorb([self._ranks.merge(moments) for moments in norm.moments_of(acted_on)])

    def _set_rates(self, rates: Rates) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rates.learning_rate
        head = {id(parameter) for parameter in self.policy.value_head.parameters()}
        for parameter in self.policy.parameters():
            parameter.requires_grad_(not rates.warming_up or id(parameter) in head)

    def _groups(self, mine: int, fragments: int) -> Iterator[Sequence[Tensor]]:
        """Per optimizer step, the rows of this rank's micro-batches; shuffled anew each epoch.

        All ranks take as many steps, whatever part of the fragments each has.
        """
        size = self._config.batch_size_per_gpu
        per_step = self._ranks.size * size * self._config.gradient_accumulation
        for _ in range(self._config.epochs_per_iteration):
            for rows in torch.tensor_split(torch.randperm(mine), -(-fragments // per_step)):
                yield torch.split(rows, size) if len(rows) else ()


def not_finite(batch: Batch, estimates: Estimates) -> list[Name]:
    """The fragments with a step that cannot be trained on."""
    fields = torch.stack((batch.reward, batch.behaviour_logp, estimates.value, estimates.target))
    bad = (~torch.isfinite(fields).all(0) & batch.mask).any(1)
    return [batch.names[row] for row in torch.nonzero(bad).flatten().tolist()]
