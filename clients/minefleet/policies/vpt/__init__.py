"""OpenAI's Video-Pre-Training network: https://arxiv.org/abs/2206.11795.

policy:
  generator: minefleet.policies.vpt:generate
  kwargs: {model_path: 2x.model, weights_path: rl-from-early-game-2x.weights}
"""

from minefleet.policies.vpt.architecture import PRESETS, VPTArchitecture
from minefleet.policies.vpt.policy_factory import generate
from minefleet.policies.vpt.vpt_policy import HierarchicalHead, VPTPolicy
from minefleet.policies.vpt.weight_files import load_vpt_policy, write_policy

__all__ = ["PRESETS", "HierarchicalHead", "VPTArchitecture", "VPTPolicy", "generate", "load_vpt_policy", "write_policy"]
