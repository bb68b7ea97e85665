"""Mixed precision: what the policy computes in, and the scale of the loss."""

import torch

from minefleet.config import TrainConfig
from minefleet.policies import Policy
from minefleet.policies.precision import DTYPES


def compute_dtype(config: TrainConfig) -> torch.dtype:
    """The dtype of the layers below the heads; every pass of the learner has it, so that they agree."""
    return DTYPES[config.amp_dtype] if config.use_amp else torch.float32


def build_scaler(policy: Policy, config: TrainConfig) -> torch.amp.GradScaler:
    """The scale of the loss, for float16 alone: its gradients would vanish without. Otherwise it does nothing."""
    device = policy.value_norm.mean.device.type
    return torch.amp.GradScaler(device, enabled=compute_dtype(config) == torch.float16)
