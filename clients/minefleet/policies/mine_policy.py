"""A policy of MineStudio as one of ours: its network and its heads, without its `forward`.

    obs, state, first ─▶ net ─▶ pi_head.{buttons, camera} ─▶ action_head (ours: samples, log-probabilities, KL)
                            └─▶ value_head.linear ─▶ value in normalised units ─▶ value_norm (ours)

`MinePolicy.forward` is not called: it replaces `first` by all False, so that memory leaks from one episode into the
next, and turns every exception into a debugger that waits. Its `value_head.loss` is not used either; `ValueNorm` takes
over where the statistics of its normaliser stand, and goes on as PopArt does.
"""

from typing import Any

import torch
from torch import Tensor, nn

from minefleet.errors import ConfigError
from minefleet.policies.heads import ActionHead, DictHead, DiscreteHead
from minefleet.policies.masks import mask_of
from minefleet.policies.policy import Policy, PolicyOutput
from minefleet.policies.value_norm import ValueNorm
from minefleet.schema import Schema
from minefleet.tree import Tree

BASE = "MinePolicy"


def is_mine_policy(policy: object) -> bool:
    """Whether this is a policy of MineStudio, by the name of a base; MineStudio is not imported to ask."""
    return any(cls.__name__ == BASE for cls in type(policy).__mro__)


class MinePolicyAdapter(Policy):
    """A policy of MineStudio whose network tells episodes apart by `context["first"]`, as VPT's does.

    The modules are taken over, not copied.

    Args:
        policy: A `MinePolicy`.
        schema: What the environment shows and takes.

    Raises:
        ConfigError: If it has no such network, its heads are not categories, or they do not fit the action.
    """

    def __init__(self, policy: Any, schema: Schema) -> None:
        super().__init__()
        name = type(policy).__qualname__
        if not hasattr(getattr(policy, "net", None), "initial_state"):
            raise ConfigError(
                f"{name} has no `net` with an `initial_state`, which minefleet calls with context={{'first': ...}}; "
                "its `forward` cannot be told where episodes begin. Give it one, as VPTPolicy has, or subclass "
                "minefleet.policies.Policy"
            )
        self.net: nn.Module = policy.net
        self.action_head = _action_head(policy.pi_head, schema, name)
        self.value_head = policy.value_head.linear
        self.value_norm = _value_norm(policy.value_head.normalizer)

    def initial_state(self, batch: int) -> Tree:
        """{"00": [B, ...], "01": ...}: the network's list, in its order."""
        device = self.value_head.weight.device
        return _tree([leaf.to(device) for leaf in self.net.initial_state(batch)])  # type: ignore[operator]

    def forward(self, obs: Tree, state: Tree, first: Tensor) -> tuple[PolicyOutput, Tree]:
        """See `Policy.forward`."""
        given = [state[key] for key in sorted(state)]
        (features, value_features), after = self.net(obs, given, context={"first": first})
        # Rounded logits and values would show in every ratio and advantage.
        with torch.autocast(first.device.type, enabled=False):
            value = self.value_head(value_features.float()).squeeze(-1)
            params, mask = self.action_head(features.float()), mask_of(obs)
            output = PolicyOutput(params if mask is None else self.action_head.masked(params, mask), value)
        return output, _tree(after)


class _Logits(nn.Module):
    """[B, T, F] to the log-probabilities [B, T, K] of a head that has a choice axis of one."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.head(features)
        return logits.squeeze(-2)


def _tree(leaves: list[Tensor]) -> Tree:
    return {f"{index:02d}": leaf for index, leaf in enumerate(leaves)}


def _action_head(pi_head: Any, schema: Schema, name: str) -> ActionHead:
    parts = dict(pi_head.items()) if isinstance(pi_head, nn.ModuleDict) else {}
    wanted = {key: leaf.categories for key, leaf in schema.action.items()} if isinstance(schema.action, dict) else {}
    made = {key: tuple(getattr(part, "output_shape", ()))[-1:] for key, part in parts.items()}
    if made != wanted or not made:
        raise ConfigError(
            f"{name} chooses among {made or type(pi_head).__name__} categories, and the environment takes "
            f"{wanted or schema.action}"
        )
    for key, part in parts.items():
        if part.nucleus_prob is not None:
            raise ConfigError(
                f"{name} draws {key} from the likeliest categories only (nucleus_prob={part.nucleus_prob}), which is "
                "not the distribution that PPO corrects for: make it without nucleus_prob"
            )
    return DictHead({key: DiscreteHead(0, made[key][0], _Logits(part)) for key, part in sorted(parts.items())})


def _value_norm(normalizer: Any) -> ValueNorm:
    """Denormalises as the normaliser does."""
    norm = ValueNorm()
    mean, variance = normalizer.running_mean_var()
    norm.mean.copy_(mean.squeeze())
    norm.variance.copy_(variance.squeeze())
    norm.weight.copy_(normalizer.debiasing_term)
    return norm
