"""The interface of a policy, for actors and the learner."""

import abc
import copy
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from minefleet.core.tree import Tree
from minefleet.policies.layers.heads import ActionHead
from minefleet.policies.layers.obs_norm import ObsNorm
from minefleet.policies.layers.value_norm import ValueNorm

if TYPE_CHECKING:
    from minefleet.policies.stored_encoder_outputs import FrozenEncoder


@dataclass(frozen=True, slots=True)
class PolicyOutput:
    """A policy's outputs for T steps of B environments."""

    params: Tree
    """Tree of [B, T, ...]: parameters of the action distribution, for the policy's `action_head` only."""
    value: Tensor
    """[B, T] float32, V(sₜ) in normalised units; `value_norm.denormalize` gives reward units."""
    encoded: Tree = field(default_factory=dict)
    """Tree of [B, T, ...]: outputs of a frozen encoder, to be stored; {} where there is none, or they were given."""


class Policy(nn.Module, abc.ABC):
    """Actor and critic in one module. Most policies are an `ActorCritic` with another encoder."""

    action_head: ActionHead
    value_head: nn.Linear
    """Last layer of the value function; `value_norm` rescales it."""
    value_norm: ValueNorm
    exact_tensors: Collection[str] = ()
    """Names in the state of parameters that `train_config.wire_dtype` must not round. Buffers never are."""
    frozen: Collection[str] = ()
    """Names of parameters that are never trained: those of a generator's policy that need no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.obs_norm: ObsNorm | None = None
        """Statistics of observations, for `forward` to use; the learner takes what was acted on into them."""
        self.frozen_encoder: FrozenEncoder | None = None
        """The encoder whose outputs fragments hold in the place of pictures; None for none."""

    def initial_state(self, batch: int) -> Tree:
        """The recurrent state at the start of an episode, a tree of [B, ...]; {} without recurrence."""
        del batch
        return {}

    @abc.abstractmethod
    def forward(self, obs: Tree, state: Tree, first: Tensor) -> tuple[PolicyOutput, Tree]:
        """Evaluates T steps of B environments.

        Args:
            obs: Tree of [B, T, ...] as the schema says: pixels are bytes, categories integers. Or what a frozen
                encoder has stored of it.
            state: Tree of [B, ...], the recurrent state before step 0.
            first: [B, T] bool, the state is reset before this step; True anywhere.

        Returns:
            The output, and the state after the last step.
        """


@torch.no_grad()
def zero_value_head(policy: Policy) -> None:
    """Makes the value 0 for every observation, in either unit: the statistics of the value are fresh ones, too."""
    policy.value_head.weight.zero_()
    policy.value_head.bias.zero_()
    policy.value_norm.load_state_dict(ValueNorm().state_dict())


def twin(policy: Policy) -> Policy:
    """A copy with weights of its own, where the policy's are."""
    # A copied GRU's weights lie scattered, and cuDNN would gather them at each call; moving a module mends that.
    return copy.deepcopy(policy).to(next(policy.parameters()).device)
