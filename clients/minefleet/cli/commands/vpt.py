"""`minefleet vpt`: files of OpenAI's and MineStudio's VPT."""

import argparse
import json
from pathlib import Path

from minefleet.core.errors import ConfigError


def run(arguments: argparse.Namespace) -> int:
    """Converts, prints one JSON object, and returns the exit code."""
    from minefleet.policies.vpt.architecture import PRESETS
    from minefleet.policies.vpt.weight_files import make_policy, read_architecture, write_policy

    if arguments.model not in PRESETS and not Path(arguments.model).exists():
        raise ConfigError(f"there is no {arguments.model}; MODEL is a file, or one of {', '.join(PRESETS)}")
    architecture = PRESETS.get(arguments.model) or read_architecture(arguments.model)
    policy = make_policy(architecture, arguments.weights)
    model_bytes = write_policy(policy, arguments.out)
    parameters = sum(parameter.numel() for parameter in policy.parameters())
    report = {"directory": str(arguments.out), "parameters": parameters, "model_bytes": model_bytes}
    print(json.dumps(report | {"architecture": architecture.to_dict()}))
    return 0
