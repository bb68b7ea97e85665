"""Reads YAML: files, presets and values on the command line. A mistake is a ConfigError with its place."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from minefleet.core.errors import ConfigError
from minefleet.presets import presets

YAML_SUFFIXES = (".yaml", ".yml")
MISSING = "???"
"""Hydra's value of a key that must be given."""

Data = dict[str, Any]
"""Sections and keys, as they were written."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Names the nearest of `known`, or the presets where none is near."""
    by_case = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_case, 1)
    return f"the nearest is {by_case[near[0]]}" if near else f"there are {', '.join(presets())}"


def read_preset(name: str) -> Data:
    """Reads a preset.

    Raises:
        ConfigError: If there is none of this name; names the nearest.
    """
    preset = resources.files("minefleet") / "presets" / f"{name}.yaml"
    if not preset.is_file():
        raise ConfigError(f"unknown preset {name!r}; {nearest(name, presets())}")
    return read_yaml(preset.read_text, Path(name))


def preset_of_env(env_id: str) -> str | None:
    """The preset that trains this Gymnasium id, which may lack the module that registers it: `ALE/Pong-v5`."""
    ids = {name: str((read_preset(name).get("env") or {}).get("id")) for name in presets()}
    return next((name for name, its in ids.items() if env_id in (its, its.rpartition(":")[2])), None)


def read_yaml(read_text: Callable[[], str], path: Path) -> Data:
    """Parses what `read_text` returns; `path` names it in messages.

    Raises:
        ConfigError: If it cannot be read, or is no mapping of keys to values.
    """
    try:
        data = OmegaConf.to_container(OmegaConf.create(read_text()))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {first_line(error)}{_place(error)}") from error
    except (OmegaConfBaseException, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no configuration: {first_line(error)}") from error
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ConfigError(f"{path} must hold keys and values, as in `seed: 1`")
    return cast(Data, data)


def as_yaml(settings: Mapping[str, Any], source: str) -> str:
    """Writes nested plain data or a `DictConfig`, which `source` names in messages, as YAML.

    Raises:
        ConfigError: If it is something else.
    """
    try:
        return OmegaConf.to_yaml(OmegaConf.create(dict(settings)))
    except (OmegaConfBaseException, TypeError, ValueError) as error:
        raise ConfigError(f"{source} is no configuration: {first_line(error)}") from error


def _place(error: yaml.YAMLError) -> str:
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    return f" in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""


def first_line(error: Exception) -> str:
    """The problem that a parser found, in one line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem:
        return error.problem
    return str(error).partition("\n")[0]
