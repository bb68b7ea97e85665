"""`minefleet host`: reads CONFIG and becomes the process that runs its environments for an actor elsewhere."""

import argparse
import json
import os
import sys

from minefleet.cli.config_arguments import required, split
from minefleet.config.load import load
from minefleet.core.child_process_start import PYTHON
from minefleet.runs.run_yaml import to_dict

MODULE = "minefleet_actor.env_hosts.remote_env_host"


def run(arguments: argparse.Namespace) -> int:
    """Becomes the host."""
    name, overrides = split(arguments.settings, arguments.map_path)
    required(name, overrides)
    addresses = ["--actor", arguments.actor, "--metrics-address", arguments.metrics_address]
    command = [*PYTHON, MODULE, json.dumps(to_dict(load(name, overrides))), *addresses]
    sys.stdout.flush()
    os.execv(command[0], command)
