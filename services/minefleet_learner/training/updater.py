"""One iteration's update: estimates, then epochs of optimizer steps.

    estimate ─▶ rescale the value head ─▶ normalise ─▶ cut into pieces ─▶ epochs: draw ─▶ micro-batches ─▶ objective
                                                                                │ every gradient_accumulation
                                                                                ▼
                         statistics of observations ◀─ at the end ─────────── stepper

A step whose loss or gradient is not finite is left out. A batch that brings something that is not finite is left out
whole, and counts as one such step.

With several ranks each has a part of the fragments. What is summed or averaged is so over all of them: the statistics,
the divisor of the losses, the gradients of a step. A step is left out on all ranks together.

Shape legend: B = fragments, T = steps in the longest one, P = pieces.
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
from minefleet_learner.algorithms.ppo import PPOLoss
from minefleet_learner.data.batch import Batch, Name, subset
from minefleet_learner.data.minibatch_sampling import draw
from minefleet_learner.distributed.ranks import SINGLE_RANK, Ranks, RanksError
from minefleet_learner.targets.batch_statistics import BatchStats, measure_batch
from minefleet_learner.targets.epoch_preparation import Prepared, Preparer
from minefleet_learner.targets.forward_passes import acted_on, has_memory
from minefleet_learner.targets.reference_policy_state_cache import build_carrier
from minefleet_learner.targets.value_and_advantage_estimates import Estimates, estimate
from minefleet_learner.training.custom_trainer_losses import Auxiliary, AuxiliaryLoss
from minefleet_learner.training.freeze import train_only
from minefleet_learner.training.loss import Objective
from minefleet_learner.training.optimizer_state_arrays import Arrays, digest
from minefleet_learner.training.optimizer_step import Stepper
from minefleet_learner.training.rng_state import rng_arrays
from minefleet_learner.training.schedules import Rates
from minefleet_learner.training.update_report import UpdateReport
from minefleet_learner.training.update_tally import UpdateTally

KL_SLACK = 1.5
"""An optimizer step may exceed `target_kl` by such a factor."""


class Updater:
    """A policy, its optimizer and its reference, and how they are trained, on this rank and the others together."""

    def __init__(
        self,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        config: TrainConfig,
        reference: Policy | None,
        *,
        ranks: Ranks = SINGLE_RANK,
        compiled: Policy | None = None,
        dump: "Dump | None" = None,
    ) -> None:
        """Stores its arguments.

        Args:
            policy: What is trained.
            optimizer: Of all its parameters, in order.
            config: How to train.
            reference: What pulls the policy towards itself, if anything does.
            ranks: This one and the others.
            compiled: Runs on the same weights in place of the policy.
            dump: Called with every step that is not finite, while the weights are those before it.
        """
        self.policy = policy
        self.optimizer = optimizer
        self.reference = reference
        self.auxiliary_losses: Mapping[str, AuxiliaryLoss] = {}
        """By name, added to every optimizer step's loss."""
        self._config = config
        self._ranks = ranks
        self._dump = dump
        self.burn_in = config.burn_in if has_memory(policy) else 0
        self._runner = policy if compiled is None else compiled
        self._objective = Objective(self._runner, config, reference)
        self.carrier = build_carrier(reference, config)
        self._preparer = Preparer(self._runner, reference, self.carrier, config)
        self._stepper = Stepper(policy, optimizer, config, ranks)

    def configure(self, config: TrainConfig) -> None:
        """Trains by another configuration from now on, of which only live keys differ."""
        self._config = self._objective.config = self._stepper.config = config

    def update(self, batch: Batch | None, rates: Rates) -> UpdateReport:
        """Trains on a batch, of which this rank has a part, or nothing. Every rank calls it, with the same rates.

        Raises:
            NonFiniteError: If the last `max_bad_steps` steps were not finite; names the fragments.
            RanksError: If the ranks differ in their weights, or one is gone.
        """
        if rates.renews_reference:
            self.refer_to_current()
        self.policy.eval()
        part = None if batch is None else estimate(self._runner, batch, self._config, burn_in=self.burn_in)
        bad = self._survey(part, rates)
        if bad:
            self._stepper.leave_out(bad)
            return UpdateReport(skipped_steps=1)
        before = measure_batch(part, self._ranks, self.policy.value_norm.mean.device, self._config.log_ratio_range)
        if not before.target.count:
            return UpdateReport(burn_in_steps=before.burn_in_steps)
        self.policy.value_norm.absorb(before.target, self.policy.value_head)
        prepared = None if part is None else self._preparer.prepare(part, before)
        is_frozen = self._set_rates(rates)
        self.policy.train(not is_frozen)
        report = self._train(prepared, before, rates)
        self.policy.eval()
        if self.policy.obs_norm is not None and not is_frozen:
            pieces = [] if batch is None else acted_on(batch, self._config.batch_size_per_gpu)
            self.policy.obs_norm.absorb([self._ranks.merge(one) for one in self.policy.obs_norm.moments_of(pieces)])
        return report

    def _survey(self, part: Estimates | None, rates: Rates) -> list[Name]:
        """The fragments of all ranks that cannot be trained on."""
        rows = [] if part is None else not_finite(part)
        bad = [] if part is None else [part.batch.names[row] for row in rows]
        if part is not None and rows:
            self._report_bad_step(BadStep(batch=subset(part.batch, torch.tensor(rows)), rates=rates))
        if self._ranks.is_alone:
            return bad
        mine = {"bad": bad, "digest": digest(self.policy.state_dict())}
        all_ranks = self._ranks.gather(mine)
        if len({one["digest"] for one in all_ranks}) > 1:
            raise RanksError("the weights differ between ranks; all have to start again from the checkpoint")
        return [(stream, sequence) for one in all_ranks for stream, sequence in one["bad"]]

    def _train(self, prepared: Prepared | None, before: BatchStats, rates: Rates) -> UpdateReport:
        """Takes the optimizer steps of all epochs; a rank without fragments takes them with the others' gradients."""
        lengths = torch.zeros(0, dtype=torch.int64) if prepared is None else prepared.pieces.mask.sum(1).cpu()
        tally, auxiliary = UpdateTally(self.policy.action_head.names), Auxiliary(self.auxiliary_losses, lengths)

        def main_loss_of(chosen: Tensor, count: float) -> PPOLoss:
            assert prepared is not None
            return self._objective.loss(prepared, rates, chosen.to(prepared.batch.mask.device), count)

        def names_of(chosen: Tensor) -> list[Name]:
            assert prepared is not None
            return prepared.names_of(chosen)

        loss_of = auxiliary.added_to(main_loss_of)
        for group, count in self._groups(prepared, lengths):
            rng = rng_arrays() if self._dump else None
            dump = partial(self._report_group, prepared, rates, rng)
            limit = self._kl_limit(rates)
            if not self._stepper.step(group, lengths, count, loss_of, names_of, tally, limit, dump):
                break
        report = tally.report(before, self._ranks, self._config.log_ratio_range)
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

    def repeat(self, prepared: Prepared, micro_batches: Sequence[Tensor], rates: Rates) -> UpdateTally:
        """Takes one step again, as `update` took it; its numbers are in what it returns."""
        self.policy.train(not self._set_rates(rates))
        tally, lengths = UpdateTally(self.policy.action_head.names), prepared.pieces.mask.sum(1)
        count = int(lengths[torch.cat(list(micro_batches))].sum())

        def loss_of(chosen: Tensor, of: float) -> PPOLoss:
            return self._objective.loss(prepared, rates, chosen, of)

        self._stepper.step(micro_batches, lengths, count, loss_of, prepared.names_of, tally)
        return tally

    def _report_group(
        self, prepared: Prepared | None, rates: Rates, rng: Arrays | None, group: Sequence[Tensor]
    ) -> None:
        if prepared is None or not group:
            return
        kept, chosen = prepared.subset(prepared.rows_of(torch.cat(list(group))))
        at = chosen.cpu()
        self._report_bad_step(
            BadStep(
                batch=kept.batch,
                rates=rates,
                prepared=kept,
                micro_batches=[torch.searchsorted(at, part).tolist() for part in group],
                rng=rng,
            )
        )

    def _report_bad_step(self, bad: "BadStep") -> None:
        if self._dump is not None:
            self._dump(self, bad)

    def _set_rates(self, rates: Rates) -> bool:
        """Returns whether a part of the policy stands still."""
        for group in self.optimizer.param_groups:
            group["lr"] = rates.learning_rate
        return train_only(self.policy, heads=self._config.fix_decoder, warming_up=rates.warming_up)

    def _kl_limit(self, rates: Rates) -> float:
        """The KL(behaviour ‖ current) beyond which the epochs end."""
        target = self._config.target_kl
        return math.inf if target is None or rates.warming_up else KL_SLACK * target

    def _groups(self, prepared: Prepared | None, lengths: Tensor) -> Iterator[tuple[Sequence[Tensor], int]]:
        """Per optimizer step, the pieces of this rank's micro-batches, and the trained steps that all ranks have.

        Pieces are drawn anew each epoch. All ranks take as many optimizer steps, whatever part of the data each has: as
        many as the configuration says, also where a lease has some steps more or fewer than an iteration wants.
        """
        optimizer_steps = -(-self._config.batches_per_iteration // self._config.gradient_accumulation)
        for _ in range(self._config.epochs_per_iteration):
            groups: Sequence[Sequence[Tensor]] = [()] * optimizer_steps
            if prepared is not None:
                groups = draw(
                    prepared.batch,
                    prepared.pieces.row.cpu(),
                    prepared.pieces.lengths.cpu(),
                    optimizer_steps,
                    self._preparer.pieces_of_a_pass(prepared),
                )
            counts = torch.tensor([sum(int(lengths[chosen].sum()) for chosen in group) for group in groups])
            self._ranks.sum([counts])
            yield from ((group, count) for group, count in zip(groups, counts.tolist(), strict=True) if count)


@dataclass(frozen=True, kw_only=True, slots=True)
class BadStep:
    """A step that is not finite, and all that it depends on beside the weights."""

    batch: Batch
    """Its fragments; where the estimates are not finite already, those of them that are not."""
    rates: Rates
    prepared: Prepared | None = None
    """Of the same fragments; None where it did not come to that."""
    micro_batches: Sequence[Sequence[int]] = ()
    """Pieces of the micro-batches."""
    rng: Arrays | None = None
    """The random generators before it."""


Dump: TypeAlias = Callable[[Updater, BadStep], None]


def not_finite(part: Estimates) -> list[int]:
    """The rows with a step that cannot be trained on. Targets are squared: statistics take their second moments."""
    bad = [~torch.isfinite(tensor) & part.batch.mask for tensor in judged(part).values()]
    return torch.nonzero(torch.stack(bad).any(0).any(1)).flatten().tolist()


def judged(part: Estimates) -> dict[str, Tensor]:
    """The tensors that must be finite, [B, T] each."""
    proximal = {} if part.proximal_logp is None else {"proximal_logp": part.proximal_logp}
    return {
        "reward": part.batch.reward,
        "behaviour_logp": part.batch.behaviour_logp,
        "value": part.value,
        "target squared": part.target.square(),
        **proximal,
    }
