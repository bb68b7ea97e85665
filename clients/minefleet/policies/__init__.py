"""Policies: observations to actions and values, with torch. `build` makes the one that the configuration asks for."""

from minefleet.policies.actor_critic import ActorCritic
from minefleet.policies.factory import build
from minefleet.policies.layers.heads import ActionHead, DictHead, DiscreteHead, GaussianHead, MultiDiscreteHead
from minefleet.policies.layers.obs_norm import ObsNorm
from minefleet.policies.layers.text import decode_text
from minefleet.policies.layers.value_norm import ValueNorm
from minefleet.policies.policy import Policy, PolicyOutput, zero_value_head

__all__ = [
    "ActionHead",
    "ActorCritic",
    "DictHead",
    "DiscreteHead",
    "GaussianHead",
    "MultiDiscreteHead",
    "ObsNorm",
    "Policy",
    "PolicyOutput",
    "ValueNorm",
    "build",
    "decode_text",
    "zero_value_head",
]
