"""Arguments shared by several commands: CONFIG with its overrides."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from minefleet.config.key_docs import key_docs
from minefleet.config.keys import kind_of
from minefleet.config.load import name_of
from minefleet.config.other_library_keys import OTHER_NAMES, OUR_KEYS, UNITS
from minefleet.core.errors import ConfigError
from minefleet.presets import presets
from minefleet.runs.default_run_directory import RUNS

ENVIRONMENTS = ("env.id=", "env.generator=")
"""Overrides that can stand without a CONFIG."""


def split(settings: list[str], path_map: Sequence[tuple[str, str]] = ()) -> tuple[str, list[str]]:
    """Parts CONFIG, empty if there is none, from the overrides.

    Args:
        settings: What stands for `CONFIG key=value`.
        path_map: What `--map-path` says; it becomes an override, too.

    Raises:
        ConfigError: If there are several CONFIGs.
    """
    configs = [item for item in settings if not is_override(item)]
    if len(configs) > 1:
        raise ConfigError(f"give one CONFIG, got {' and '.join(configs)}; overrides are key=value")
    overrides = [item for item in settings if is_override(item)]
    if path_map:
        overrides.append(f"path_map={json.dumps(dict(path_map))}")
    return (configs or [""])[0], overrides


def is_override(word: str) -> bool:
    """Whether a word is key=value: no key has a slash in it, and a file may have an equals sign."""
    key, equals, _ = word.partition("=")
    return bool(equals) and "/" not in key and not Path(word).is_file()


def required(config: str, overrides: Sequence[str]) -> str:
    """Insists on a CONFIG or an environment; returns a short name for it.

    Raises:
        ConfigError: If there is no CONFIG, and no override names an environment.
    """
    named = [override.partition("=")[2] for override in overrides if override.startswith(ENVIRONMENTS)]
    if not config and not any(named):
        raise ConfigError(
            f"give a CONFIG: an id such as CartPole-v1, a .yaml or .py file, or one of {', '.join(presets())}"
        )
    return name_of(config or named[-1])


def run_directory(named: Path | None, config: str, overrides: Sequence[str]) -> Path:
    """The directory of a run that several processes set up from CONFIG: theirs, or one of its own.

    Raises:
        ConfigError: If there is no CONFIG.
    """
    name = required(config, overrides)
    return named or RUNS / name


def refuse_options(options: Sequence[str], arguments: Sequence[str]) -> NoReturn:
    """Answers options that a command does not have, as `--lr 3e-4`, with the override to write.

    Raises:
        ConfigError: Always.
    """
    option, _, value = options[0].partition("=")
    name, following = option.lstrip("-").replace("-", "_"), arguments[list(arguments).index(options[0]) + 1 :]
    keys = (
        [OUR_KEYS.get(name, "")]
        if name in OTHER_NAMES
        else [key.path for key in key_docs() if name in (key.path, key.name)]
    )
    if any(keys) and keys[0] not in UNITS:
        value = value or ("true" if kind_of(keys[0]) is bool else (*following, "VALUE")[0])
        instead = f"write {' or '.join(f'{key}={value}' for key in keys)}"
    else:
        instead = OTHER_NAMES.get(name, "see --help; keys are written key=value")
    raise ConfigError(f"there is no option {option}: {instead}")
