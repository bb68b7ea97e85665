"""Where a policy is computed."""

import torch


def choose_device(name: str) -> torch.device:
    """`auto` takes CUDA when there is one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
