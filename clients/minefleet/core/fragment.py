"""A fragment: consecutive steps of one environment, as NumPy arrays.

Shape legend: T = steps in the fragment, K = steps with a `cut_obs`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from minefleet.core.tree import Tree, flatten

Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]


class LargeFields(NamedTuple):
    """The fields of a fragment that may be large."""

    obs: Tree
    cut_obs: Tree
    recurrent_state: Tree


@dataclass(frozen=True, kw_only=True, slots=True)
class Fragment:
    """T consecutive steps; may span episodes."""

    obs: Tree
    """Tree of [T, ...]: what the policy saw."""
    action: Tree
    """Tree of [T, ...]: what it did."""
    reward: Floats
    """[T] float32, received for `action[t]`."""
    terminated: Bools
    """[T] bool, the task ended with this step."""
    truncated: Bools
    """[T] bool, the episode was cut after this step."""
    first: Bools
    """[T] bool, recurrent state must be reset before this step."""
    crash: Bools
    """[T] bool, truncated because the environment failed on the next step, which is not stored."""
    behaviour_logp: Floats
    """[T] float32, log-probability of `action[t]` when it was taken."""
    behaviour_value: Floats
    """[T] float32, V(sₜ) when it acted, in reward units."""
    next_value: Floats
    """[T] float32, V(sₜ₊₁) of the behaviour policy in reward units: of the observation before the reset where
    truncated, 0 where terminated."""
    policy_version: NDArray[np.uint32]
    """[T] uint32, the version that computed the step."""
    cut_index: NDArray[np.int32]
    """[K] int32, rising: the steps that are truncated, and the last one unless it is terminated."""
    cut_obs: Tree
    """Tree of [K, ...]: the observation after step `cut_index[k]`, before any reset."""
    recurrent_state: Tree
    """Tree without batch and time: the state before step 0. An empty dict without recurrence."""
    duration: NDArray[np.uint32] | None = None
    """[T] uint32, >= 1, how many steps of its own the environment took in each; None where that is always one."""

    def __post_init__(self) -> None:
        """Rejects arrays whose leading lengths disagree."""
        length = len(self.reward)
        stepwise = {"obs": self.obs, "action": self.action} | {
            name: getattr(self, name)
            for name in (
                "terminated truncated first crash behaviour_logp behaviour_value next_value policy_version".split()
            )
        }
        if self.duration is not None:
            stepwise["duration"] = self.duration
            if not self.duration.all():
                raise ValueError("a step must have a duration of at least 1")
        lengths = {path: leaf.shape[0] for path, leaf in flatten(stepwise).items()}
        if set(lengths.values()) != {length} or length == 0:
            raise ValueError(f"expected {length} >= 1 steps in every array, got {lengths}")
        cuts = {path: leaf.shape[0] for path, leaf in flatten({"cut_obs": self.cut_obs}).items()}
        if set(cuts.values()) - {len(self.cut_index)}:
            raise ValueError(f"expected {len(self.cut_index)} cut observations, got {cuts}")

    def __len__(self) -> int:
        """Steps in the fragment."""
        return len(self.reward)

    def large_fields(self) -> LargeFields:
        """The fields that may be large."""
        return LargeFields(self.obs, self.cut_obs, self.recurrent_state)
