"""Policies: observations to actions and values, with torch. `build` makes the one that the configuration asks for."""

from minefleet.policies.actor_critic import ActorCritic
from minefleet.policies.factory import build
from minefleet.policies.heads import ActionHead, DictHead, DiscreteHead, GaussianHead, MultiDiscreteHead
from minefleet.policies.obs_norm import ObsNorm
from minefleet.policies.policy import Policy, PolicyOutput, zero_value_head
from minefleet.policies.text import decode_text
from minefleet.policies.value_norm import ValueNorm

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
