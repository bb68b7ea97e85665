"""What an optimizer step minimises: the loss of a micro-batch.

Shape legend: B = fragments, T = steps in the longest one; b = rows of the micro-batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from minefleet.config import TrainConfig
from minefleet.policies import Policy
from minefleet.tree import Tree
from minefleet_learner.batch import Batch
from minefleet_learner.forward import Selection, evaluate, gather, has_memory, select_steps
from minefleet_learner.ppo import PPOLoss, ppo_loss
from minefleet_learner.schedule import Rates


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """What the epochs train on."""

    batch: Batch
    numbers: Tensor
    """[B, T, 4] float32: behaviour_logp, advantage, value target and V(sₜ) before the update, in normalised units."""


class Objective:
    """The loss of some rows under a policy, which `reference`, if there is one, pulls towards itself."""

    def __init__(self, policy: Policy, config: TrainConfig, reference: Policy | None) -> None:
        self.reference = reference
        self._policy = policy
        self._config = config
        self._has_memory = has_memory(policy)

    def loss(self, prepared: Prepared, rates: Rates, rows: Tensor, count: float) -> PPOLoss:
        """The loss of the fragments `rows` [b]; means are sums over `count` steps."""
        batch, head = prepared.batch, self._policy.action_head
        chosen = select_steps(batch, rows, whole_rows=self._has_memory)
        output = evaluate(self._policy, batch, chosen, self._config.context_length)
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
        return self._policy.action_head.kl(params, theirs)
