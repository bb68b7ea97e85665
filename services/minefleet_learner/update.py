"""One iteration's update: estimates, then epochs of optimizer steps.

    estimate ─▶ rescale the value head ─▶ normalise ─▶ epochs: shuffle ─▶ micro-batches ─▶ objective
                                                                               │ every gradient_accumulation
                                                                               ▼
                        statistics of observations ◀─ at the end ─────────── stepper

A step whose loss or gradient is not finite is left out. A batch that brings something that is not finite is left out
whole, and counts as one such step.

Shape legend: B = fragments, T = steps in the longest one.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from minefleet.config import TrainConfig
from minefleet.policies import Policy
from minefleet_learner.auxiliary import Auxiliary, AuxiliaryLoss
from minefleet_learner.batch import Batch, subset
from minefleet_learner.burn_in import burned_in
from minefleet_learner.estimates import Estimates, estimate
from minefleet_learner.forward import acted_on, has_memory
from minefleet_learner.freezing import train_only
from minefleet_learner.objective import Objective, Prepared
from minefleet_learner.ppo import normalize
from minefleet_learner.reference import build_carrier
from minefleet_learner.report import Tally, UpdateReport
from minefleet_learner.schedule import Rates
from minefleet_learner.snapshot import Arrays, rng_arrays
from minefleet_learner.stepping import Stepper

KL_SLACK = 1.5
"""How far beyond `target_kl` an optimizer step may be, as a factor."""


class Updater:
    """A policy, its optimizer and its reference, and how they are trained."""

    def __init__(
        self,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        config: TrainConfig,
        reference: Policy | None,
        *,
        compiled: Policy | None = None,
        dump: "Dump | None" = None,
    ) -> None:
        """Stores its arguments.

        Args:
            policy: What is trained.
            optimizer: Of all its parameters, in order.
            config: How to train.
            reference: What pulls the policy towards itself, if anything does.
            compiled: Runs on the same weights in place of the policy.
            dump: Told every step that is not finite, while the weights are those before it.
        """
        self.policy = policy
        self.optimizer = optimizer
        self.reference = reference
        self.auxiliary_losses: Mapping[str, AuxiliaryLoss] = {}
        """By name, added to every optimizer step's loss."""
        self._config = config
        self._dump = dump
        self.burn_in = config.burn_in if has_memory(policy) else 0
        self._runner = policy if compiled is None else compiled
        self._objective = Objective(self._runner, config, reference)
        self.carrier = build_carrier(reference, config)
        self._stepper = Stepper(policy, optimizer, config)

    def update(self, batch: Batch, rates: Rates) -> UpdateReport:
        """Trains on a batch.

        Raises:
            NonFiniteError: If the last `max_bad_steps` steps were not finite; names the fragments.
        """
        if rates.renews_reference:
            self.refer_to_current()
        self.policy.eval()
        estimates = estimate(self._runner, batch, self._config)
        if bad := not_finite(batch, estimates):
            self._tell(BadStep(batch=subset(batch, torch.tensor(bad)), rates=rates))
            self._stepper.leave_out([batch.names[row] for row in bad])
            return UpdateReport(skipped_steps=1)
        trained = batch.mask & ~burned_in(batch.first, self.burn_in)
        if not trained.any():
            return UpdateReport(burn_in_steps=int(batch.mask.sum()))
        prepared = self._prepare(batch, estimates, trained)
        stands_still = self._set_rates(rates)
        self.policy.train(not stands_still)
        tally, auxiliary = Tally(), Auxiliary(self.auxiliary_losses, prepared.lengths)
        loss_of = auxiliary.added_to(partial(self._objective.loss, prepared, rates))
        for group in self._groups(batch):
            dump = partial(self._tell_of, prepared, rates, rng_arrays() if self._dump else None)
            limit = self._kl_limit(rates)
            if not self._stepper.step(group, prepared.lengths, loss_of, batch.names, tally, limit, dump):
                break
        self.policy.eval()
        if self.policy.obs_norm is not None and not stands_still:
            self.policy.obs_norm.absorb(acted_on(batch, self._config.batch_size_per_gpu))
        report = tally.report(batch, trained, estimates, self._config.log_ratio_range)
        return replace(report, auxiliary=auxiliary.means())

    @property
    def scaler(self) -> torch.amp.GradScaler:
        """The scale of the loss."""
        return self._stepper.scaler

    def refer_to_current(self) -> None:
        """Makes the reference, if there is one, what the policy is."""
        if self.reference is not None:
            self.reference.load_state_dict(self.policy.state_dict())
        if self.carrier is not None:
            self.carrier.forget()

    def repeat(self, prepared: Prepared, micro_batches: Sequence[Tensor], rates: Rates) -> Tally:
        """Takes one step again, as `update` took it; its numbers are in what it returns."""
        self.policy.train(not self._set_rates(rates))
        tally, loss_of = Tally(), partial(self._objective.loss, prepared, rates)
        self._stepper.step(micro_batches, prepared.lengths, loss_of, prepared.batch.names, tally)
        return tally

    def _tell_of(self, prepared: Prepared, rates: Rates, rng: Arrays | None, group: Sequence[Tensor]) -> None:
        rows = torch.cat(list(group))
        micro_batches = torch.split(torch.arange(len(rows)), [len(part) for part in group])
        self._tell(
            BadStep(
                batch=subset(prepared.batch, rows),
                rates=rates,
                prepared=prepared.subset(rows),
                micro_batches=[part.tolist() for part in micro_batches],
                rng=rng,
            )
        )

    def _tell(self, bad: "BadStep") -> None:
        if self._dump is not None:
            self._dump(self, bad)

    def _prepare(self, batch: Batch, estimates: Estimates, trained: Tensor) -> Prepared:
        """Takes the targets into the value statistics, and changes units."""
        norm = self.policy.value_norm
        norm.update(estimates.target[trained], self.policy.value_head)
        advantage = estimates.advantage
        if self._config.normalize_advantage_full_batch:
            advantage = normalize(advantage, trained)
        target, anchor = norm.normalize(estimates.target), norm.normalize(estimates.value)
        return Prepared(
            batch=batch,
            lengths=trained.sum(1),
            trained=trained,
            reference_state={} if self.carrier is None else self.carrier.starts(batch),
            numbers=torch.stack(
                (batch.behaviour_logp, self._proximal_logp(batch, estimates), advantage, target, anchor), -1
            ),
        )

    def _proximal_logp(self, batch: Batch, estimates: Estimates) -> Tensor:
        """[B, T] of the policy from which the update may not go far: with `clip`, the behaviour policy."""
        if self._config.off_policy == "clip" or estimates.proximal_logp is None:
            return batch.behaviour_logp
        return estimates.proximal_logp

    def _set_rates(self, rates: Rates) -> bool:
        """Returns whether a part of the policy stands still."""
        for group in self.optimizer.param_groups:
            group["lr"] = rates.learning_rate
        return train_only(self.policy, heads=self._config.fix_decoder, warming_up=rates.warming_up)

    def _kl_limit(self, rates: Rates) -> float:
        """The KL(behaviour ‖ current) beyond which the epochs end."""
        target = self._config.target_kl
        return math.inf if target is None or rates.warming_up else KL_SLACK * target

    def _groups(self, batch: Batch) -> Iterator[Sequence[Tensor]]:
        """Per optimizer step, the rows of its micro-batches; shuffled anew each epoch."""
        device = batch.mask.device
        for _ in range(self._config.epochs_per_iteration):
            order = torch.split(torch.randperm(len(batch)), self._config.batch_size_per_gpu)
            batch.announce(order)
            rows = [part.to(device) for part in order]
            for start in range(0, len(rows), self._config.gradient_accumulation):
                yield rows[start : start + self._config.gradient_accumulation]


@dataclass(frozen=True, kw_only=True, slots=True)
class BadStep:
    """A step that is not finite, and all that it depends on beside the weights."""

    batch: Batch
    """Its fragments; where the estimates are not finite already, those of them that are not."""
    rates: Rates
    prepared: Prepared | None = None
    """Of the same fragments; None where it did not come to that."""
    micro_batches: Sequence[Sequence[int]] = ()
    """Rows of the micro-batches."""
    rng: Arrays | None = None
    """The random generators before it."""


Dump: TypeAlias = Callable[[Updater, BadStep], None]


def not_finite(batch: Batch, estimates: Estimates) -> list[int]:
    """The rows with a step that cannot be trained on. Targets are squared: statistics take their second moments."""
    bad = [~torch.isfinite(tensor) & batch.mask for tensor in judged(batch, estimates).values()]
    return torch.nonzero(torch.stack(bad).any(0).any(1)).flatten().tolist()


def judged(batch: Batch, estimates: Estimates) -> dict[str, Tensor]:
    """What must be finite, [B, T] each."""
    proximal = {} if estimates.proximal_logp is None else {"proximal_logp": estimates.proximal_logp}
    return {
        "reward": batch.reward,
        "behaviour_logp": batch.behaviour_logp,
        "value": estimates.value,
        "target squared": estimates.target.square(),
        **proximal,
    }
