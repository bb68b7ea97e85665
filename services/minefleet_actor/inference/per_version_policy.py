"""A copy of the policy with weights of its own, and all that a batch is computed with."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from minefleet.core.tree import Tree
from minefleet.policies import Policy
from minefleet.policies.weight_arrays import load_numpy
from minefleet_actor.inference.compiled_forward import Forward


class PolicyCopy:
    """Loads weights into a policy; has room of its own for what it sees, a tree of [largest batch, ...]."""

    def __init__(self, policy: Policy, forward: Forward, staging: Tree) -> None:
        self.policy, self.forward, self.staging = policy, forward, staging
        self._take_scale()

    def load(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Takes newer weights, between two batches."""
        load_numpy(self.policy, weights)
        self._take_scale()

    def _take_scale(self) -> None:
        """Caches the statistics of value normalisation as plain numbers, which cost a decision less than tensors do."""
        norm = self.policy.value_norm
        self.std, self.mean = norm.std.item(), norm.mean.item()
