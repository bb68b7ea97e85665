"""`minefleet vpt`: files of OpenAI's and MineStudio's VPT."""

import argparse
import json
from pathlib import Path

from minefleet.core.errors import ConfigError

ACTIONS = {
    "convert": "write MODEL and WEIGHTS into OUT: architecture.json and model.safetensors, from which no code can run"
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command line."""
    parser.add_argument(
        "action", choices=ACTIONS, help="; ".join(f"{name}: {purpose}" for name, purpose in ACTIONS.items())
    )
    parser.add_argument("model", metavar="MODEL", help="a `.model` file, or 1x, 2x or 3x")
    parser.add_argument("weights", type=Path, metavar="WEIGHTS", help="a `.weights`, `.ckpt` or `.safetensors` file")
    parser.add_argument("out", type=Path, metavar="OUT", help="the directory to write")


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
