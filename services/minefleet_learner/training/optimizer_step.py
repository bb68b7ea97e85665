"""One optimizer step: the gradients of its micro-batches, clipped, and taken only if all is finite.

    micro-batch ─▶ loss ─▶ backward ─┐
    micro-batch ─▶ loss ─▶ backward ─┴▶ sum over ranks ─▶ clip ─▶ finite? ─▶ optimizer

What is clipped and judged is the sum, which is the same on every rank, and so is the judgement.
"""

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from minefleet.config import TrainConfig
from minefleet.core.errors import GaveUpError
from minefleet.policies import Policy
from minefleet_learner.algorithms.ppo import PPOLoss
from minefleet_learner.data.batch import Name
from minefleet_learner.distributed.ranks import Ranks
from minefleet_learner.targets.forward_passes import compute_dtype
from minefleet_learner.training.update_tally import APPROX_KL, UpdateTally

logger = logging.getLogger(__name__)

BAD_STEPS = "bad-steps"
"""Folder in a run's directory."""

Loss = Callable[[Tensor, float], PPOLoss]
"""Pieces [p] of a micro-batch, and the number of steps that all of the step's micro-batches have, on all ranks."""


class NonFiniteError(GaveUpError):
    """Too many optimizer steps in a row were not finite."""


class Stepper:
    """Takes optimizer steps, and counts those in a row that it had to leave out."""

    def __init__(self, policy: Policy, optimizer: torch.optim.Optimizer, config: TrainConfig, ranks: Ranks) -> None:
        device = policy.value_norm.mean.device.type
        self.optimizer = optimizer
        self.scaler = torch.amp.GradScaler(device, enabled=compute_dtype(config) == torch.float16)
        """The scale of the loss, for float16 alone: its gradients would vanish without. Otherwise it does nothing."""
        self._ranks = ranks
        self.config = config
        self._parameters = list(policy.parameters())
        self._bad_steps = 0

    def step(
        self,
        group: Sequence[Tensor],
        lengths: Tensor,
        count: float,
        loss_of: Loss,
        names_of: Callable[[Tensor], list[Name]],
        tally: UpdateTally,
        kl_limit: float = math.inf,
        dump: Callable[[Sequence[Tensor]], None] = lambda _: None,
    ) -> bool:
        """One step over the micro-batches whose pieces are given; every rank brings its own, or none.

        Args:
            group: Pieces [p] of each micro-batch.
            lengths: [P] int64, trained steps of each piece; on the CPU, as `group` is.
            count: Trained steps of all micro-batches of all ranks.
            loss_of: The loss of a micro-batch.
            names_of: The fragments of pieces.
            tally: Takes the step's numbers.
            kl_limit: The step is not taken where the mean KL(behaviour ‖ current) exceeds this.
            dump: Called with the pieces of a step that is not finite.

        Returns:
            Whether to go on: False once the limit is exceeded.

        Raises:
            NonFiniteError: If the last `max_bad_steps` steps were not finite; names the fragments.
        """
        sums, total, largest = tally.zeros(self._parameters[0]), self._parameters[0].new_zeros(1), list[Tensor]()
        count = max(count, 1)
        self.optimizer.zero_grad(set_to_none=True)
        for chosen in group:
            loss = loss_of(chosen, count)
            self.scaler.scale(loss.total).backward()  # type: ignore[no-untyped-call]  # torch does not annotate it.
            sums += tally.parts(loss, float(lengths[chosen].sum()) / count)
            total += loss.total.detach()
            largest.append(loss.max_log_ratio)
        self._sum_over_ranks([sums, total])
        if kl_limit < math.inf and float(sums[APPROX_KL]) > kl_limit:
            return False
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.config.max_grad_norm)
        if torch.isfinite(norm) and torch.isfinite(total):
            self.optimizer.step()
            self.scaler.update()
            self._bad_steps = 0
            tally.add(sums, norm, largest)
        else:
            self.scaler.update()
            tally.skipped += 1
            mine = names_of(torch.cat(list(group))) if group else []
            gathered = [(stream, sequence) for of in self._ranks.gather(mine) for stream, sequence in of]
            self.leave_out(gathered, partial(dump, group))
        return True

    def _sum_over_ranks(self, sums: Sequence[Tensor]) -> None:
        """Sums the gradients and what goes with them.

        A parameter that no rank has used keeps no gradient, so that the optimizer leaves it alone.
        """
        if self._ranks.is_alone:
            return
        trained = [parameter for parameter in self._parameters if parameter.requires_grad]
        used = sums[0].new_tensor([parameter.grad is not None for parameter in trained])
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self._ranks.sum([*sums, used, *(parameter.grad for parameter in trained if parameter.grad is not None)])
        for parameter, users in zip(trained, used.tolist(), strict=True):
            if not users:
                parameter.grad = None

    def leave_out(self, names: list[Name], dump: Callable[[], None] = lambda: None) -> None:
        """Counts a step that is not taken because of these fragments; `dump` keeps it.

        Raises `NonFiniteError` like `step`.
        """
        self._bad_steps += 1
        text = ", ".join(f"{stream}/{sequence}" for stream, sequence in names)
        logger.warning("left out a step that is not finite; its fragments are %s", text)
        dump()
        if self._bad_steps >= self.config.max_bad_steps:
            raise NonFiniteError(
                f"{self._bad_steps} optimizer steps in a row were not finite; the last fragments: {text}; "
                f"the first ones are kept in the run's {BAD_STEPS}"
            )
