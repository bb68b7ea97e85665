"""`minefleet env`: reads CONFIG or a run and becomes the process that plays its environment, and nothing else."""

import argparse
import json
import os
import sys
from pathlib import Path

from minefleet.cli.config_arguments import required, split
from minefleet.config import FleetConfig
from minefleet.config.load import load, merge
from minefleet.core.child_process_start import PYTHON
from minefleet.core.schema import Schema
from minefleet.launch.env_policy_check import describe_environment
from minefleet.runs.run_yaml import RUN_FILE, read_run, to_dict

MODULE = "minefleet_actor.evaluation.random_play_check"


def run(arguments: argparse.Namespace) -> int:
    """Becomes the trial."""
    if arguments.replay is not None and not split(arguments.settings)[0]:
        arguments.settings.append(str(arguments.replay.absolute().parents[1]))
    config, schema = find(arguments.settings, arguments.map_path)
    chosen = config.seed if arguments.seed is None else arguments.seed
    if schema is None and not arguments.inline:
        print("looking at the environment's spaces ...", flush=True)
        schema = Schema.from_dict(describe_environment(config)["schema"])
    spaces = json.dumps(None if schema is None else schema.to_dict())
    command = [*PYTHON, MODULE, json.dumps(to_dict(config)), spaces]
    command += ["--steps", str(arguments.steps), "--seed", str(chosen)]
    command += [f"--{name.replace('_', '-')}" for name in ("noop_actions", "inline") if getattr(arguments, name)]
    command += ["--replay", str(arguments.replay)] * (arguments.replay is not None)
    sys.stdout.flush()
    os.execv(command[0], command)


def find(settings: list[str], path_map: list[tuple[str, str]]) -> tuple[FleetConfig, Schema | None]:
    """The configuration that CONFIG, or a run, and the overrides make; and the run's spaces, where they hold."""
    name, overrides = split(settings, path_map)
    required(name, overrides)
    if not name or not (Path(name) / RUN_FILE).exists():
        return load(name, overrides), None
    run = read_run(Path(name), RUN_FILE)
    config = merge(to_dict(run.config), name, overrides)
    return config, run.schema if config.env == run.config.env else None
