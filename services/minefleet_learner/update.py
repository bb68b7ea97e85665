"""One iteration's update: estimates, then epochs of micro-batches.

    estimate ─▶ rescale the value head ─▶ normalise ─▶ epochs: shuffle ─▶ micro-batches ─▶ loss, backward
                                                                               │ every gradient_accumulation
                                                                               ▼
                        statistics of observations ◀─ at the end ─── clip ─▶ finite? ─▶ optimizer step

A step whose loss or gradient is not finite is left out. A batch that brings something that is not finite is left out
whole, and counts as one such step.

Shape legend: B = fragments, T = steps in the longest one.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minefleet.config import TrainConfig
from minefleet.errors import GaveUpError
from minefleet.policies import Policy
from minefleet.tree import Tree
from minefleet_learner.batch import Batch, Name
from minefleet_learner.estimates import Estimates, estimate
from minefleet_learner.forward import Selection, evaluate, gather, has_memory, select_steps
from minefleet_learner.ppo import PPOLoss, normalize, ppo_loss
from minefleet_learner.report import Tally, UpdateReport
from minefleet_learner.schedule import Rates

logger = logging.getLogger(__name__)


class NonFiniteError(GaveUpError):
    """Too many optimizer steps in a row were not finite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """What the epochs train on."""

    batch: Batch
    lengths: Tensor
    """[B] int64, steps of each fragment."""
    numbers: Tensor
    """[B, T, 4] float32: behaviour_logp, advantage, value target and V(sₜ) before the update, in normalised units."""


class Updater:
    """A policy, its optimizer and its reference, and how they are trained."""

    def __init__(
        self, policy: Policy, optimizer: torch.optim.Optimizer, config: TrainConfig, reference: Policy | None
    ) -> None:
        self.policy = policy
        self.optimizer = optimizer
        self.reference = reference
        self._config = config
        self._has_memory = has_memory(policy)
        self._parameters = list(policy.parameters())
        self._bad_steps = 0

    def update(self, batch: Batch, rates: Rates) -> UpdateReport:
        """Trains on a batch.

        Raises:
            NonFiniteError: If the last `max_bad_steps` steps were not finite; names the fragments.
        """
        self.policy.eval()
        estimates = estimate(self.policy, batch, self._config)
        if bad := not_finite(batch, estimates):
            self._count_bad(bad)
            return UpdateReport(skipped_steps=1)
        prepared = self._prepare(batch, estimates)
        self._set_rates(rates)
        self.policy.train()
        tally = Tally()
        for group in self._groups(len(batch)):
            self._step(prepared, group, rates, tally)
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
            numbers=torch.stack((batch.behaviour_logp, advantage, target, anchor), -1),
        )

    def _set_rates(self, rates: Rates) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rates.learning_rate
        head = {id(parameter) for parameter in self.policy.value_head.parameters()}
        for parameter in self._parameters:
            parameter.requires_grad_(not rates.warming_up or id(parameter) in head)

    def _groups(self, fragments: int) -> Iterator[Sequence[Tensor]]:
        """Per optimizer step, the rows of its micro-batches; shuffled anew each epoch."""
        device = self.policy.value_norm.mean.device
        for _ in range(self._config.epochs_per_iteration):
            rows = torch.split(torch.randperm(fragments).to(device), self._config.batch_size_per_gpu)
            for start in range(0, len(rows), self._config.gradient_accumulation):
                yield rows[start : start + self._config.gradient_accumulation]

    def _step(self, prepared: Prepared, group: Sequence[Tensor], rates: Rates, tally: Tally) -> None:
        """One optimizer step over the micro-batches whose rows are given."""
        sizes = [int(prepared.lengths[rows].sum()) for rows in group]
        losses = []
        self.optimizer.zero_grad(set_to_none=True)
        for rows, size in zip(group, sizes, strict=True):
            loss = self._loss(prepared, rows, rates, count=sum(sizes))
            loss.total.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it.
            losses.append((loss, size / sum(sizes)))
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._config.max_grad_norm)
        if torch.isfinite(torch.stack([norm, *(loss.total.detach() for loss, _ in losses)])).all():
            self.optimizer.step()
            self._bad_steps = 0
            tally.add(losses, norm)
        else:
            tally.skip()
            self._count_bad([prepared.batch.names[row] for rows in group for row in rows.tolist()])

    def _loss(self, prepared: Prepared, rows: Tensor, rates: Rates, *, count: float) -> PPOLoss:
        batch, head = prepared.batch, self.policy.action_head
        chosen = select_steps(batch, rows, whole_rows=self._has_memory)
        output = evaluate(self.policy, batch, chosen, self._config.context_length)
        behaviour_logp, advantage, target, anchor = gather(prepared.numbers, chosen.steps).unbind(-1)
        return ppo_loss(
            logp=head.logp(output.params, gather(batch.action, chosen.steps)),
            behaviour_logp=behaviour_logp,
            advantage=advantage,
            value=output.value,
            value_target=target,
            entropy=head.entropy(output.params),
            mask=chosen.mask,
            clip=rates.clip,
            policy_coef=0.0 if rates.warming_up else self._config.ppo_policy_coef,
            value_coef=self._config.ppo_vf_coef,
            entropy_coef=0.0 if rates.warming_up else self._config.entropy_bonus_coef,
            anchor_value=anchor if self._config.clip_vloss else None,
            kl_reference=self._kl_reference(output.params, batch, chosen),
            rho=0.0 if rates.warming_up else rates.rho,
            log_ratio_range=self._config.log_ratio_range,
            count=count,
        )

    def _kl_reference(self, params: Tree, batch: Batch, chosen: Selection) -> Tensor | None:
        """KL(current ‖ reference) [b, T]; the reference runs from the stored states too."""
        if self.reference is None:
            return None
        with torch.no_grad():
            theirs = evaluate(self.reference, batch, chosen, self._config.context_length).params
        return self.policy.action_head.kl(params, theirs)

    def _count_bad(self, names: list[Name]) -> None:
        self._bad_steps += 1
        text = ", ".join(f"{stream}/{sequence}" for stream, sequence in names)
        logger.warning("left out a step that is not finite; its fragments are %s", text)
        if self._bad_steps >= self._config.max_bad_steps:
            raise NonFiniteError(
                f"{self._bad_steps} optimizer steps in a row were not finite; the last fragments: {text}"
            )


def not_finite(batch: Batch, estimates: Estimates) -> list[Name]:
    """The fragments with a step that cannot be trained on."""
    fields = torch.stack((batch.reward, batch.behaviour_logp, estimates.value, estimates.target))
    bad = (~torch.isfinite(fields).all(0) & batch.mask).any(1)
    return [batch.names[row] for row in torch.nonzero(bad).flatten().tolist()]
