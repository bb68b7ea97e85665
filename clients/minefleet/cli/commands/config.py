"""`minefleet config`: a configuration and its keys, without starting anything."""

import argparse
import textwrap
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import yaml
from omegaconf import OmegaConf

from minefleet.cli.config_arguments import required, split
from minefleet.config import FleetConfig
from minefleet.config.key_docs import KeyDoc, key_docs
from minefleet.config.keys import unknown_key
from minefleet.config.load import COMMAND_LINE, PRESET, Settings, layers_of, preset_by_kind, read_settings
from minefleet.config.other_library_keys import OUR_KEYS
from minefleet.config.replay_partitioning import spread
from minefleet.core.repro_command import reproducible
from minefleet.launch.env_policy_check import check_env_and_policy
from minefleet.launch.fork_server import ForkServer
from minefleet.runs.run_yaml import to_dict

WIDTH = 100
UNSET = object()
"""Of a key that a layer does not give."""


def run(arguments: argparse.Namespace) -> int:
    """Prints YAML, or what keys mean."""
    config, overrides = split(arguments.settings, arguments.map_path)
    if arguments.action == "explain":
        settings = read_settings(config, overrides) if arguments.settings else None
        print("\n".join(explanation(find_keys(arguments.key), settings)))
        return 0
    required(config, overrides)
    settings = read_settings(config, overrides)
    loaded = settings.of()
    if arguments.diff:
        print("\n".join(differing(settings)))
        return 0
    data = to_dict(loaded)
    if arguments.action == "resolve":
        with reproducible([config, *overrides]), closing(ForkServer()) as forks:
            data = check_env_and_policy(
                spread(loaded), forks.start, lambda schema: spread(settings.of(schema))
            ).to_dict()
    print(OmegaConf.to_yaml(OmegaConf.create(data)), end="")
    return 0


def find_keys(word: str) -> list[KeyDoc]:
    """The keys that a word means: a key, all of a section, those of this last name, or ours for a name of others.

    A word that is none of these means the keys whose names or meanings contain it.

    Raises:
        ConfigError: If there is none; names the nearest.
    """
    known = list(key_docs())
    for is_meant in (
        lambda key: f"{key.path}.".startswith(f"{word}." if word else ""),
        lambda key: key.name == word or key.path == OUR_KEYS.get(word),
        lambda key: word.startswith(f"{key.path}."),
        lambda key: word.lower() in f"{key.path} {key.meaning}".lower(),
    ):
        if found := list(filter(is_meant, known)):
            return found
    raise unknown_key(word, COMMAND_LINE)


def explanation(found: list[KeyDoc], settings: Settings | None) -> Iterator[str]:
    """The lines that say what keys mean, and their values in a configuration; in short for several."""
    data = None if settings is None else to_dict(settings.of())
    for key in found:
        kind, text = (f": {key.type}", key.meaning) if len(found) == 1 else ("", textwrap.shorten(key.meaning, WIDTH))
        notes = [] if data is None else [f"here {_yaml(_at(data, key.path))}"]
        notes += ["live: `minefleet set` changes it while a run goes"] * (key.is_live and len(found) == 1)
        yield f"{key.path}{kind} = {key.default}{'  # ' if notes else ''}{'; '.join(notes)}"
        yield from textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="    ")


def differing(settings: Settings) -> Iterator[str]:
    """YAML of the keys whose value differs from the default or from what another layer says, each with its source.

    The preset below them is named where the environment would have to be made to know it.
    """
    data, defaults = to_dict(settings.of()), to_dict(FleetConfig())
    layers = layers_of(settings.data, settings.source, settings.overrides)
    base = layers[0][0].removeprefix("preset ")
    if base != preset_by_kind(layers, shows_pixels=False):
        yield f"{PRESET}: {base}  # without it, that of the kind of task"
    above: list[str] = []
    for key in key_docs():
        said = {place: value for place, layer in layers if (value := _at(layer, key.path)) is not UNSET}
        value, default = _at(data, key.path), _at(defaults, key.path)
        if all(other == value for other in (default, *said.values())):
            continue
        sections = key.section.split(".") if key.section else []
        for depth, name in enumerate(sections):
            if above[: depth + 1] != sections[: depth + 1]:
                yield f"{'  ' * depth}{name}:"
        above = sections
        yield f"{'  ' * len(sections)}{key.name}: {_yaml(value)}  # {list(said)[-1]}; default {_yaml(default)}"


def _at(data: Any, path: str) -> Any:
    for name in path.split("."):
        data = data.get(name, UNSET) if isinstance(data, dict) else UNSET
    return data


def _yaml(value: Any) -> str:
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
        .removesuffix("\n")
        .removesuffix("\n...")
    )
