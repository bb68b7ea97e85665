"""OpenAI's Video-Pre-Training network: https://arxiv.org/abs/2206.11795."""

from minefleet.policies.vpt.architecture import PRESETS, VPTArchitecture
from minefleet.policies.vpt.policy import HierarchicalHead, VPTPolicy

__all__ = ["PRESETS", "HierarchicalHead", "VPTArchitecture", "VPTPolicy"]
