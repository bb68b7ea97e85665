"""Parses `key=value` overrides of a configuration."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from minefleet.config.paths import anchor_paths
from minefleet.config.yaml_text import Data, first_line
from minefleet.core.errors import ConfigError

ENTRY = re.compile(r"(\w+)\[(\d+)\]")
"""A part of a key that names an entry of a list, as in `services.replay[1].address`."""


def read_overrides(overrides: Sequence[str]) -> Data:
    """Parses `key=value` arguments; values are YAML, relative paths are taken from the current folder.

    Raises:
        ConfigError: If one is not `key=value`, or its value is no YAML.
    """
    data: Data = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key:
            raise ConfigError(f"an override is key=value, got {override!r}")
        put(data, key, _parse_value(override, value))
    anchor_paths(data, Path.cwd())
    return data


def _parse_value(override: str, text: str) -> Any:
    """Parses the value of an override as YAML.

    Raises:
        ConfigError: If it is no YAML; quotes the override.
    """
    if not text:
        return text
    try:
        return OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))["value"]  # type: ignore[index,call-overload]
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"the value in {override!r} is no YAML: {first_line(error)}") from error


def put(data: Data, key: str, value: Any) -> None:
    """Sets a dotted key. What is no section becomes one, so that the checks can name it."""
    *sections, name = _path(key)
    for section in sections:
        if not isinstance(data.get(section), dict):
            data[section] = {}
        data = data[section]
    data[name] = value


def _path(key: str) -> list[Any]:
    """The parts of a dotted key; the number of a list's entry is a part of its own."""
    parts: list[Any] = []
    for part in key.split("."):
        entry = ENTRY.fullmatch(part)
        parts += [entry[1], int(entry[2])] if entry else [part]
    return parts
