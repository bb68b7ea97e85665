"""One optimizer step: the gradients of its micro-batches, clipped, and taken only if all is finite.

micro-batch ─▶ loss ─▶ backward ─┐
micro-batch ─▶ loss ─▶ backward ─┴▶ clip ─▶ finite? ─▶ optimizer
"""

import logging
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from minefleet.config import TrainConfig
from minefleet.errors import GaveUpError
from minefleet.policies import Policy
from minefleet_learner.amp import build_scaler
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
        self.scaler = build_scaler(policy, config)
        self._config = config
        self._parameters = list(policy.parameters())
        self._bad_steps = 0

    def step(
        self,
        group: Sequence[Tensor],
        lengths: Tensor,
        loss_of: Loss,
        names: list[Name],
        tally: Tally,
        kl_limit: float = math.inf,
        dump: Callable[[Sequence[Tensor]], None] = lambda _: None,
    ) -> bool:
        """One step over the micro-batches whose rows are given.

        Args:
            group: Rows [b] of each micro-batch.
            lengths: [B] int64, trained steps of each fragment.
            loss_of: The loss of a micro-batch.
            names: Of the B fragments.
            tally: Takes the step's numbers.
            kl_limit: The step is not taken where the mean KL(behaviour ‖ current) exceeds this.
            dump: Told the rows of a step that is not finite, before it is counted.

        Returns:
            Whether to go on: False once the limit is exceeded.

        Raises:
            NonFiniteError: If the last `max_bad_steps` steps were not finite; names the fragments.
        """
        sizes = [int(lengths[rows].sum()) for rows in group]
        count, losses = max(sum(sizes), 1), []
        self.optimizer.zero_grad(set_to_none=True)
        for rows, size in zip(group, sizes, strict=True):
            loss = loss_of(rows, count)
            self.scaler.scale(loss.total).backward()  # type: ignore[no-untyped-call]  # torch does not annotate it.
            losses.append((loss, size / count))
        if kl_limit < math.inf and float(sum(share * loss.approx_kl for loss, share in losses)) > kl_limit:
            return False
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._config.max_grad_norm)
        if torch.isfinite(torch.stack([norm, *(loss.total.detach() for loss, _ in losses)])).all():
            self.optimizer.step()
            self.scaler.update()
            self._bad_steps = 0
            tally.add(losses, norm)
        else:
            self.scaler.update()
            tally.skip()
            dump(group)
            self.leave_out([names[row] for rows in group for row in rows.tolist()])
        return True

    def leave_out(self, names: list[Name]) -> None:
        """Counts a step that is not taken because of these fragments. Raises `NonFiniteError` like `step`."""
        self._bad_steps += 1
        text = ", ".join(f"{stream}/{sequence}" for stream, sequence in names)
        logger.warning("left out a step that is not finite; its fragments are %s", text)
        if self._bad_steps >= self._config.max_bad_steps:
            raise NonFiniteError(
                f"{self._bad_steps} optimizer steps in a row were not finite; the last fragments: {text}"
            )
