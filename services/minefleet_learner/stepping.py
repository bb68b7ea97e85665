"""One optimizer step: the gradients of its micro-batches, clipped, and taken only if all is finite.

micro-batch ─▶ loss ─▶ backward ─┐
micro-batch ─▶ loss ─▶ backward ─┴▶ clip ─▶ finite? ─▶ optimizer
"""

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from minefleet.config import TrainConfig
from minefleet.errors import GaveUpError
from minefleet.policies import Policy
from minefleet_learner.batch import Name
from minefleet_learner.ppo import PPOLoss
from minefleet_learner.report import Tally

logger = logging.getLogger(__name__)

Loss = Callable[[Tensor, float], PPOLoss]
"""Rows [b] of a micro-batch, and the number of steps that all of the step's micro-batches have together."""


class NonFiniteError(GaveUpError):
    """Too many optimizer steps in a row were not finite."""


class Stepper:
    """Takes optimizer steps, and counts those in a row that it had to leave out."""

    def __init__(self, policy: Policy, optimizer: torch.optim.Optimizer, config: TrainConfig) -> None:
        self.optimizer = optimizer
        self._config = config
        self._parameters = list(policy.parameters())
        self._bad_steps = 0

    def step(self, group: Sequence[Tensor], lengths: Tensor, loss_of: Loss, names: list[Name], tally: Tally) -> None:
        """One step over the micro-batches whose rows are given.

        Args:
            group: Rows [b] of each micro-batch.
            lengths: [B] int64, steps of each fragment.
            loss_of: The loss of a micro-batch.
            names: Of the B fragments.
            tally: Takes the step's numbers.

        Raises:
            NonFiniteError: If the last `max_bad_steps` steps were not finite; names the fragments.
        """
        sizes = [int(lengths[rows].sum()) for rows in group]
        losses = []
        self.optimizer.zero_grad(set_to_none=True)
        for rows, size in zip(group, sizes, strict=True):
            loss = loss_of(rows, sum(sizes))
            loss.total.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it.
            losses.append((loss, size / sum(sizes)))
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._config.max_grad_norm)
        if torch.isfinite(torch.stack([norm, *(loss.total.detach() for loss, _ in losses)])).all():
            self.optimizer.step()
            self._bad_steps = 0
            tally.add(losses, norm)
        else:
            tally.skip()
            self.leave_out([names[row] for rows in group for row in rows.tolist()])

    def leave_out(self, names: list[Name]) -> None:
        """Counts a step that is not taken because of these fragments. Raises `NonFiniteError` like `step`."""
        self._bad_steps += 1
        text = ", ".join(f"{stream}/{sequence}" for stream, sequence in names)
        logger.warning("left out a step that is not finite; its fragments are %s", text)
        if self._bad_steps >= self._config.max_bad_steps:
            raise NonFiniteError(
                f"{self._bad_steps} optimizer steps in a row were not finite; the last fragments: {text}"
            )
