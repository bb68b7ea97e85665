"""`minefleet config`: what a configuration says, without starting anything."""

import argparse
from contextlib import closing

from omegaconf import OmegaConf

from minefleet.cli.settings import add_settings, required, split
from minefleet.config.load import read_settings
from minefleet.config.shards import spread
from minefleet.core.reproduce import reproducible
from minefleet.launch.fork_server import ForkServer
from minefleet.launch.preflight import preflight
from minefleet.runs.run import to_dict


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command line."""
    parser.add_argument(
        "action", choices=("show", "resolve"), help="show: every key; resolve: what run.yaml would hold"
    )
    add_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints YAML."""
    config, overrides = split(arguments.settings, arguments.map_path)
    settings = read_settings(required(config), overrides)
    loaded = settings.of()
    data = to_dict(loaded)
    if arguments.action == "resolve":
        with reproducible([config, *overrides]), closing(ForkServer()) as forks:
            data = preflight(spread(loaded), forks.start, lambda schema: spread(settings.of(schema))).to_dict()
    print(OmegaConf.to_yaml(OmegaConf.create(data)), end="")
    return 0
