"""A policy with the weights of one version, and how a batch is computed by it."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from minefleet.policies import Policy
from minefleet.policies.weight_arrays import load_numpy
from minefleet_actor.inference.forward import Forward


class ActingPolicy:
    """Loads weights into a policy and knows their version."""

    def __init__(self, policy: Policy, forward: Forward) -> None:
        self.policy, self.forward = policy, forward
        self.version = 0
        self._take_scale()

    def load(self, weights: Mapping[str, NDArray[Any]], version: int) -> None:
        """Takes newer weights, between two batches."""
        load_numpy(self.policy, weights)
        self._take_scale()
        self.version = version

    def _take_scale(self) -> None:
        """Caches the statistics of value normalisation as plain numbers, which cost a decision less than tensors do."""
        norm = self.policy.value_norm
        self.std, self.mean = norm.std.item(), norm.mean.item()
