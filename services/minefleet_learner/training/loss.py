"""The loss of a micro-batch, which an optimizer step minimises.

Shape legend: p = pieces of the micro-batch, L = steps of the longest one.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from minefleet.config import TrainConfig
from minefleet.core.tree import Tree, tree_map
from minefleet.policies import Policy, PolicyOutput
from minefleet_learner.algorithms.ppo import PPOCoefs, PPOLoss, masked_mean, ppo_loss
from minefleet_learner.targets.epoch_preparation import Prepared
from minefleet_learner.targets.forward_passes import compute_dtype, evaluate_pieces, gather
from minefleet_learner.training.schedules import Rates


class Objective:
    """The loss of some pieces under a policy, which `reference`, if there is one, pulls towards itself."""

    def __init__(self, policy: Policy, config: TrainConfig, reference: Policy | None) -> None:
        self.reference = reference
        self._policy = policy
        self.config = config

    def loss(self, prepared: Prepared, rates: Rates, chosen: Tensor, count: float) -> PPOLoss:
        """The loss of the pieces `chosen` [p]; means are sums over `count` steps."""
        batch, head = prepared.batch, self._policy.action_head
        mask = prepared.pieces.mask[chosen]
        longest = int(mask.any(0).nonzero().max()) + 1
        steps, mask = prepared.pieces.steps[chosen, :longest], mask[:, :longest]
        output = self._evaluate(self._policy, prepared, chosen, steps, prepared.start)
        entropies = head.entropies(output.params)
        loss = ppo_loss(
            logp=head.logp(output.params, gather(batch.action, steps)),
            value=output.value,
            entropy=torch.stack(list(entropies.values())).sum(0),
            targets=prepared.targets_of(steps),
            mask=mask,
            coefs=self._coefs(rates),
            kl_reference=self._kl_reference(output.params, prepared, chosen, steps),
            count=count,
        )
        means = {name: masked_mean(one.detach(), mask, count) for name, one in entropies.items() if name}
        return replace(loss, head_entropy=means)

    def _coefs(self, rates: Rates) -> PPOCoefs:
        """While the value head warms up, only its error is trained on."""
        return PPOCoefs(
            clip=rates.clip,
            policy=0.0 if rates.warming_up else self.config.ppo_policy_coef,
            value=self.config.ppo_vf_coef,
            entropy=0.0 if rates.warming_up else rates.entropy,
            rho=0.0 if rates.warming_up else rates.rho,
            weight_cap=weight_cap(self.config),
            clips_value=self.config.clip_vloss,
            log_ratio_range=self.config.log_ratio_range,
        )

    def _kl_reference(self, params: Tree, prepared: Prepared, chosen: Tensor, steps: Tensor) -> Tensor | None:
        """KL(current ‖ reference) [p, L]."""
        if self.reference is None:
            return None
        with torch.no_grad():
            theirs = self._evaluate(self.reference, prepared, chosen, steps, prepared.reference_start).params
        return self._policy.action_head.kl(params, theirs)

    def _evaluate(self, policy: Policy, prepared: Prepared, chosen: Tensor, steps: Tensor, start: Tree) -> PolicyOutput:
        on_cpu = chosen.cpu()
        state = tree_map(lambda leaf: leaf[on_cpu].to(chosen.device), start)
        dtype = compute_dtype(self.config)
        return evaluate_pieces(policy, prepared.batch, prepared.pieces.row[chosen], steps, state, dtype)


def weight_cap(config: TrainConfig) -> float:
    """The largest weight that a step gets for what the proximal policy has moved since it was acted.

    V-trace weights the policy's gradient by ρₜ (Espeholt et al. 2018, §4.2), which is this weight truncated at ρ̄.
    """
    return {"clip": math.inf, "decoupled": config.importance_weight_cap, "vtrace": config.vtrace_rho_bar}[
        config.off_policy
    ]
