"""Distributed PPO for game agents whose environments are slow and crash-prone.

    run = minefleet.train("cartpole", "stop.env_steps=20_000")
    agent = minefleet.load(run.directory)

`docs/python.md` shows more. Each function is imported when it is first used, so that `import minefleet` stays fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["load", "open", "train"]

if TYPE_CHECKING:
    from minefleet.local_training import train
    from minefleet.monitoring.run_reader import open_run as open  # noqa: A004  # It is `minefleet.open`.
    from minefleet.policies.trained_agent import load
else:  # A type checker would take any name for one that there is.
    _PLACES = {
        "load": ("minefleet.policies.trained_agent", "load"),
        "open": ("minefleet.monitoring.run_reader", "open_run"),
        "train": ("minefleet.local_training", "train"),
    }

    def __getattr__(name: str) -> Any:
        """Imports a function when it is first asked for."""
        if name not in _PLACES:
            raise AttributeError(f"module 'minefleet' has no attribute {name!r}")
        module, function = _PLACES[name]
        return getattr(import_module(module), function)
