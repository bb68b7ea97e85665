"""Trainers: what decides how a run is trained, on top of the loop that leases, publishes, acks and saves.

    take ─▶ update ─▶ broadcast_model_to_rollout_workers        one iteration of `PPOTrainer.train`
      ▲                     │
    lease            publish, ack, checkpoint, metrics           beside the training

torch is imported when a trainer trains, so that naming one stays fast.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from minefleet.config import TrainConfig
from minefleet.core.errors import GaveUpError
from minefleet.v1 import status_service_pb2
from minefleet_learner.training.update_report import UpdateReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from torch.optim import Optimizer

    from minefleet.launch.rollout_manager_handle import RolloutManager
    from minefleet.policies import Policy
    from minefleet_learner.data.batch import Batch
    from minefleet_learner.iteration_input import IterationInput
    from minefleet_learner.loop import Learner
    from minefleet_learner.training.custom_trainer_losses import AuxiliaryLoss
    from minefleet_runtime.role_context import RoleContext


@dataclass(frozen=True, kw_only=True, slots=True)
class GaeActor:
    """Computes GAE(γ, λ) for a trainer."""

    discount: float
    gae_lambda: float

    def advantages(self, batch: Batch, value: Tensor, next_value: Tensor) -> Tensor:
        """Âₜ [B, T], chained over contiguous fragments of a stream, 0 at padding; value targets are Âₜ + V(sₜ).

        Args:
            batch: B fragments.
            value: [B, T] float32, V(sₜ) in reward units.
            next_value: [B, T] float32, V(sₜ₊₁), likewise.
        """
        from minefleet_learner.algorithms.fragment_chain_advantages import chain
        from minefleet_learner.targets.value_and_advantage_estimates import steps_of

        steps = steps_of(batch, value, next_value)
        return chain(batch.names, **steps, discount=self.discount, gae_lambda=self.gae_lambda)


class BaseTrainer(ABC):
    """A trainer of one run. A subclass says with what (`setup_model_and_optimizer`) and how (`train`)."""

    policy: Policy
    """From `setup_model_and_optimizer` on, as is the optimizer."""
    optimizer: Optimizer

    def __init__(
        self,
        rollout_manager: RolloutManager,
        policy_generator: Callable[[], Policy],
        env_generator: Callable[[], Any],
        **train_config: Any,
    ) -> None:
        """Stores its arguments; nothing is built or sent yet.

        Args:
            rollout_manager: Of the run to train.
            policy_generator: Makes the policy, with fresh weights.
            env_generator: Makes an environment. The learner makes none; this is for trainers that need to look at one.
            train_config: Keys of `train_config`; those that are missing take their defaults.

        Raises:
            TypeError: If there is no such key.
            ConfigError: If a value is impossible.
        """
        self.rollout_manager = rollout_manager
        self.policy_generator = policy_generator
        self.env_generator = env_generator
        self._configure(TrainConfig(**train_config))
        self.run = replace(rollout_manager.run, config=replace(rollout_manager.run.config, train_config=self.config))
        self._configured = self.run.config
        self.auxiliary_losses: dict[str, AuxiliaryLoss] = {}
        """By name: added to the loss of every optimizer step, and reported as `auxiliary/NAME`."""
        self.report: UpdateReport | None = None
        """The report of this iteration's update; without one the iteration counts as not trained."""
        self._taken: IterationInput | None = None
        self._act: Callable[[], None] | None = None

    @abstractmethod
    def setup_model_and_optimizer(self) -> tuple[Policy, Optimizer]:
        """Makes the policy, on the device to train on, and an optimizer of `policy.parameters()` in their order.

        The process is seeded before; weights and moments of a checkpoint are loaded after.
        """

    @abstractmethod
    def train(self) -> None:
        """Trains until `is_over`: takes fragments, changes the weights, broadcasts them, again and again.

        A stop ends whatever wait it is in with a `StoppedError`, which is to be let through.
        """

    @property
    def is_over(self) -> bool:
        """Whether the run's end is reached or a stop is asked for."""
        return self._context.stopping.is_set() or self._learner.is_over

    def take(self) -> IterationInput:
        """Waits for the fragments of one iteration; then the weights may be changed."""
        if self._taken is not None:
            raise RuntimeError("these fragments are still to be broadcast: one lease, one broadcast")
        if self._act is not None:
            self._act()
        self._taken, self.report = self._learner.take(), None
        if self._taken.config is not self._configured:
            self._configured = self._taken.config
            self._configure(self._configured.train_config)
        return self._taken

    def _configure(self, config: TrainConfig) -> None:
        self.config, self.gae_lambda = config, config.gae_lambda
        self.gae_actor = GaeActor(discount=config.discount, gae_lambda=config.gae_lambda)

    def fetch_fragments_and_estimate_advantages(self, num_fragments: int) -> dict[str, Any]:
        """Leases fragments and estimates what a trainer with an update of its own needs.

        Args:
            num_fragments: Those of one iteration: num_workers * batch_size_per_gpu * batches_per_iteration. As
                many steps as full ones have are taken, in however many fragments.

        Returns:
            `obs` and `actions`, trees of [B, T, ...], and `first` [B, T], as a policy and its head take them; `mask`
            [B, T], False at padding, where what follows is 0; `rewards`, `td_targets`, `advantages` (not normalised),
            `behaviour_logp`, `proximal_logp` (under the weights as they are), `behaviour_value`, `next_value`,
            `policy_version` and `durations` (steps of the environment's own: a step that took n discounts what follows
            by γⁿ), all [B, T], values in reward units; `recurrent_state`, a tree of [B, ...] before the
            first step; and `records`, the `Batch` that these come from.

        Raises:
            ValueError: If it is another number of fragments.
        """
        import torch

        from minefleet_learner.targets.forward_passes import observations, stored_state
        from minefleet_learner.targets.value_and_advantage_estimates import estimate, recompute

        if num_fragments != self.config.fragments_per_iteration:
            raise ValueError(
                f"an iteration leases {self.config.fragments_per_iteration} fragments (train_config: num_workers * "
                f"batch_size_per_gpu * batches_per_iteration), got num_fragments={num_fragments}"
            )
        batch = self.take().batch
        assert batch is not None, "a rank alone has all that was leased"
        self.policy.eval()
        estimates, rows = estimate(self.policy, batch, self.config), torch.arange(len(batch), device=batch.mask.device)
        return {
            "records": batch,
            "obs": observations(batch, rows, batch.position),
            "actions": batch.action,
            "first": batch.first,
            "mask": batch.mask,
            "rewards": batch.reward,
            "td_targets": estimates.target,
            "advantages": estimates.advantage,
            "behaviour_logp": batch.behaviour_logp,
            "proximal_logp": recompute(self.policy, batch, self.config).logp,
            "behaviour_value": batch.behaviour_value,
            "next_value": batch.next_value,
            "policy_version": batch.policy_version,
            "durations": batch.mask.long() if batch.duration is None else batch.duration,
            "recurrent_state": stored_state(batch, rows),
        }

    def broadcast_model_to_rollout_workers(self, new_version: bool) -> None:
        """Ends the iteration: its fragments are acked, its numbers logged, and its weights published.

        Args:
            new_version: Whether the weights become the next version. Otherwise nothing is published: actors go on with
                the newest one, since a version that is out never changes.
        """
        if self._taken is None:
            raise RuntimeError("there is nothing to broadcast: fetch fragments first")
        self._learner.finish_iteration(self._taken, self.report or UpdateReport(), new_version=new_version)
        self._taken = None

    def fit(self, context: RoleContext | None = None, act: Callable[[], None] | None = None) -> dict[str, Any]:
        """Trains in this process, on a run whose other roles are up or will be.

        Args:
            context: The learner's, where this process plays that role already; None makes one.
            act: Called before each lease, to act for it; then everything is done in order, on this thread.

        Returns:
            What `result.json` says of the end; {} where a stop came while the other roles were away.
        """
        from minefleet_learner.iteration_commit import RESULT_FILE
        from minefleet_runtime.role_context import RoleContext

        context = context or RoleContext(run=self.run, role=status_service_pb2.ROLE_LEARNER, name="learner")
        self._context, self._act = replace(context, run=self.run), act
        self._train_func()
        result = self.run.directory / RESULT_FILE
        return json.loads(result.read_text()) if result.exists() else {}

    def _train_func(self) -> None:
        """Builds the learner and runs `train` on it, from the checkpoint to the last one."""
        from minefleet_learner.build import build_learner
        from minefleet_learner.loop import run

        self._learner: Learner = build_learner(self._context, background=self._act is None, setup=self._set_up)
        self._learner.updater.auxiliary_losses = self.auxiliary_losses
        run(self._learner, self._context.stopping, self.train)

    def _set_up(self) -> tuple[Policy, Optimizer]:
        made = self.setup_model_and_optimizer()
        if not isinstance(made, tuple) or len(made) != 2:
            raise GaveUpError(
                f"setup_model_and_optimizer must return a policy and an optimizer, got a {type(made).__name__}"
            )
        self.policy, self.optimizer = made
        return self.policy, self.optimizer


class PPOTrainer(BaseTrainer):
    """Trains by PPO, with the losses that `train_config` names."""

    def setup_model_and_optimizer(self) -> tuple[Policy, Optimizer]:
        """Makes the policy of the configuration, and AdamW."""
        from minefleet.policies.device import choose_device
        from minefleet_learner.build import build_optimizer

        policy = self.policy_generator().to(choose_device(self.config.device, "train_config.device"))
        return policy, build_optimizer(policy, self.config)

    def train(self) -> None:
        """Updates and publishes, iteration by iteration."""
        while not self.is_over:
            self.report = self.update(self.take())
            self.broadcast_model_to_rollout_workers(new_version=True)

    def update(self, taken: IterationInput) -> UpdateReport:
        """One iteration's epochs of optimizer steps."""
        return self._learner.updater.update(taken.batch, taken.rates)
