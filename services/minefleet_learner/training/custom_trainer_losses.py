"""Losses that a custom trainer adds to the objective."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from minefleet_learner.algorithms.ppo import PPOLoss
from minefleet_learner.training.optimizer_step import Loss

AuxiliaryLoss: TypeAlias = Callable[[], Tensor]
"""A scalar with a gradient, its weight included, on data of its own."""


class Auxiliary:
    """The auxiliary losses of one iteration, and their means."""

    def __init__(self, losses: Mapping[str, AuxiliaryLoss], lengths: Tensor) -> None:
        """Stores its arguments.

        Args:
            losses: By name.
            lengths: [P] int64, trained steps of each piece.
        """
        self._losses = losses
        self._lengths = lengths
        self._seen: dict[str, list[Tensor]] = {name: [] for name in losses}

    def added_to(self, loss_of: Loss) -> Loss:
        """The loss of a micro-batch with its share of the auxiliary ones: a whole optimizer step has each once."""
        return self._both(loss_of) if self._losses else loss_of

    def means(self) -> dict[str, float]:
        """The mean of each over the iteration."""
        return {name: float(torch.stack(values).mean()) for name, values in self._seen.items() if values}

    def _both(self, loss_of: Loss) -> Loss:
        def loss(chosen: Tensor, count: float) -> PPOLoss:
            main = loss_of(chosen, count)
            return replace(main, total=main.total + self._sum() * (self._lengths[chosen].sum() / count))

        return loss

    def _sum(self) -> Tensor:
        values = {name: loss() for name, loss in self._losses.items()}
        for name, value in values.items():
            self._seen[name].append(value.detach())
        return torch.stack([*values.values()]).sum()
