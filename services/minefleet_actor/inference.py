"""Batched inference: the policy, and the recurrent state of every slot, on one device.

Shape legend: S = slots, n = slots in a batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minefleet.policies import Policy
from minefleet.policies.weights import Architecture, architecture, load_numpy
from minefleet.tree import Tree, tree_map

Slots = NDArray[np.intp]


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What the policy made of a batch; arrays of [n, ...]."""

    action: Tree
    logp: NDArray[np.float32]
    value: NDArray[np.float32]
    """In reward units."""
    first: NDArray[np.bool_]
    version: int
    """The version that computed all of it."""


class Inference:
    """Runs a policy over some slots at a time; state stays on the device."""

    def __init__(self, policy: Policy, slots: int, *, device: torch.device, seed: int, greedy: bool) -> None:
        self.version = 0
        self._policy = policy.to(device).eval()
        self._device = device
        self._greedy = greedy
        self._generator = torch.Generator(device).manual_seed(seed)
        self._initial: Tree = tree_map(torch.clone, self._policy.initial_state(1))
        self._state: Tree = tree_map(torch.clone, self._policy.initial_state(slots))
        self._first = np.ones(slots, np.bool_)

    @property
    def architecture(self) -> Architecture:
        """Of the policy: its weights must have it."""
        return architecture(self._policy)

    def swap(self, weights: Mapping[str, NDArray[Any]], version: int) -> None:
        """Takes new weights. Called between batches only, so that a step is stamped with what computed it."""
        load_numpy(self._policy, weights)
        self.version = version

    def reset(self, slot: int) -> None:
        """Marks the slot's next observation as the first of an episode."""
        self._first[slot] = True
        tree_map(lambda state, initial: state[slot : slot + 1].copy_(initial), self._state, self._initial)

    def state(self, slot: int) -> Tree:
        """A copy of the slot's recurrent state, as arrays without batch and time."""
        return tree_map(lambda state: state[slot].cpu().numpy().copy(), self._state)

    @torch.inference_mode()
    def decide(self, slots: Slots, obs: Tree, keeps: NDArray[np.bool_]) -> Decision:
        """Computes actions and values; obs leaves [n, ...].

        Args:
            slots: The slots that the rows of `obs` belong to.
            obs: What they see.
            keeps: [n] bool; where False the slot's state stays as it was: its value was all that was wanted.
        """
        index = torch.from_numpy(slots).to(self._device)
        state = tree_map(lambda leaf: leaf.index_select(0, index), self._state)
        first = self._first[slots]
        output, state = self._policy(tree_map(self._batch, obs), state, self._batch(first))
        action = self._policy.action_head.sample(output.params, self._greedy, self._generator)
        decision = Decision(
            action=tree_map(_row, action),
            logp=_row(self._policy.action_head.logp(output.params, action)),
            value=_row(self._policy.value_norm.denormalize(output.value)),
            first=first,
            version=self.version,
        )
        self._keep(slots, state, keeps)
        return decision

    def _keep(self, slots: Slots, state: Tree, keeps: NDArray[np.bool_]) -> None:
        kept = torch.from_numpy(np.flatnonzero(keeps)).to(self._device)
        index = torch.from_numpy(slots[keeps]).to(self._device)
        tree_map(lambda target, source: target.index_copy_(0, index, source[kept]), self._state, state)
        self._first[slots[keeps]] = False

    def _batch(self, array: NDArray[Any]) -> Tensor:
        """[n, ...] to [n, 1, ...] on the device."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device).unsqueeze(1)


def _row(leaf: Tensor) -> NDArray[Any]:
    """[n, 1, ...] to [n, ...] in memory."""
    return leaf.squeeze(1).cpu().numpy()
