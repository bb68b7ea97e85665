"""Chooses the device of a policy."""

import torch

from minefleet.core.errors import ConfigError


def choose_device(name: str, key: str) -> torch.device:
    """`auto` takes CUDA when there is one, else the CPU.

    Raises:
        ConfigError: If there is no such device; names the key that asks for it.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"{key}={name} is no device; `auto`, `cpu` and `cuda` are") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise ConfigError(f"{key}={name}: torch {torch.__version__} sees {count} GPUs here; `auto` takes one if it can")
    return device
