"""From CONFIG and overrides to one validated `FleetConfig`. Only here, and in `run.yaml`, is there OmegaConf.

CONFIG is the name of a preset, a YAML file, a Python module (`python_config`), the id of a Gymnasium environment, or
empty where the overrides say everything. It stands on a preset: on the one that it names or whose environment it is, on
MineStudio's where it has a key of theirs, or else on that of its kind of task.

    defaults ◀─ preset ◀─ CONFIG ◀─ key=value

What kind of task it is, the environment shows; until that has been made, it is taken to show no pixels.

Every mistake is a `ConfigError` that says what is wrong, where, and what is near.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from minefleet.config.keys import all_keys, by_number, check_keys, kind_of, wanted, whole_numbers
from minefleet.config.overrides import put, read_overrides
from minefleet.config.paths import resolve_paths, text_at
from minefleet.config.python_config import read_module
from minefleet.config.root_config import WANDB_KEYS, FleetConfig
from minefleet.config.yaml_text import (
    MISSING,
    YAML_SUFFIXES,
    Data,
    first_line,
    nearest,
    preset_of_env,
    read_preset,
    read_yaml,
)
from minefleet.core.child_process_start import Start, start_fresh
from minefleet.core.errors import ConfigError
from minefleet.core.schema import Schema
from minefleet.core.tree import flatten
from minefleet.presets import presets

COMMAND_LINE = "command line"

PRESET = "preset"
"""Key of CONFIG that names what it stands on."""
MEMORY, PIXELS, VECTORS = "memory", "pixels", "vectors"
"""The presets of the kinds of task: any policy with memory, and others by what they see."""
MINESTUDIO = "minestudio"
MINESTUDIO_KEY = "detach_rollout_manager"
"""Has a meaning in their configurations only."""
MAKERS = (("env", "id"), ("env", "generator"), ("policy", "generator"))
"""Keys that name what is made by the others of their section."""
ENV_ID = re.compile(r"(?:[\w.]+:)?(?:[\w-]+/)?[\w.:-]+-v\d+")
"""An id of Gymnasium as CONFIG: `CartPole-v1`, `ALE/Pong-v5`, `module:Id-v0`."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """CONFIG and the command line, before the environment's schema is known."""

    data: Data
    source: str
    overrides: Sequence[str]

    def of(self, schema: Schema | None = None) -> FleetConfig:
        """The configuration of an environment that shows `schema`; None while that is not known.

        Raises:
            ConfigError: If a key or value is wrong.
        """
        pixels = schema is not None and any(leaf.is_image for leaf in flatten(schema.obs).values())
        return merge(self.data, self.source, self.overrides, shows_pixels=pixels)


def load(config: str, overrides: Sequence[str] = (), start: Start = start_fresh) -> FleetConfig:
    """Reads CONFIG and `key=value` overrides; `start` starts the process that imports a Python module.

    Raises:
        ConfigError: If CONFIG does not exist, or a key or value is wrong; nothing has been written then.
    """
    return read_settings(config, overrides, start).of()


def read_settings(config: str, overrides: Sequence[str] = (), start: Start = start_fresh) -> Settings:
    """As `load`, for who is about to make the environment.

    Raises:
        ConfigError: If the file that CONFIG names does not exist.
    """
    given = read_overrides(overrides)
    data = read(config or text_at(given, "env", "id"), given.get("path_map", {}), start)
    return Settings(data=data, source=config, overrides=overrides)


def merge(data: Data, source: str, overrides: Sequence[str], *, shows_pixels: bool = False) -> FleetConfig:
    """Applies overrides to plain data that came from `source`, on the preset that they stand on.

    Raises:
        ConfigError: If a key or value is wrong.
    """
    layers = layers_of(data, source, overrides, shows_pixels=shows_pixels)
    given = {key: (place, value) for place, layer in layers for key, value in _leaves(layer)}
    for key, (place, value) in given.items():
        if value == MISSING:
            raise ConfigError(f"{key} ({place}) must be given: it is {MISSING}")
    tree: Any = OmegaConf.structured(FleetConfig)
    for place, layer in layers:
        tree = _layered(tree, OmegaConf.create(_whole_lists(layer, tree)), place)
    return to_object(tree)


def layers_of(
    data: Data, source: str, overrides: Sequence[str], *, shows_pixels: bool = False
) -> list[tuple[str, Data]]:
    """The presets, CONFIG and the overrides, each with the place that it is from; a later one wins.

    Raises:
        ConfigError: If a key is wrong.
    """
    layers = [(source, _with_wandb_keys(data)), (COMMAND_LINE, _with_wandb_keys(read_overrides(overrides)))]
    named = [layer.pop(PRESET) for _, layer in layers if PRESET in layer]
    for place, layer in layers:
        check_keys(layer, place)
    base = str(named[-1]) if named else preset_by_kind(layers, shows_pixels=shows_pixels)
    return [(place, whole_numbers(layer)) for place, layer in [*_bases(base, layers), *layers]]


def _leaves(data: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested plain data with their dotted keys."""
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for name, value in entries:
        yield from _leaves(value, f"{key}.{name}".removeprefix("."))
    if not isinstance(data, dict | list):
        yield key, data


def preset_by_kind(layers: Sequence[tuple[str, Data]], *, shows_pixels: bool) -> str:
    """The preset to stand on where none is named, that of the kind of task."""
    if any(MINESTUDIO_KEY in layer for _, layer in layers):
        return MINESTUDIO
    sizes = [layer["policy"]["gru_size"] for _, layer in layers if "gru_size" in (layer.get("policy") or {})]
    if sizes and sizes[-1]:
        return MEMORY
    return PIXELS if shows_pixels else VECTORS


def _bases(preset: str, layers: Sequence[tuple[str, Data]]) -> list[tuple[str, Data]]:
    """A preset, and before it what that stands on; nothing of its environment or policy where another one is named."""
    values = read_preset(preset)
    for section, key in MAKERS:
        named = {text_at(layer, section, key) for _, layer in layers} - {""}
        if named - {text_at(values, section, key)}:
            values.pop(section, None)
    base = values.pop(PRESET, None)
    return [*([] if base is None else _bases(base, layers)), (f"preset {preset}", values)]


def from_data(data: Mapping[str, Any], source: str) -> FleetConfig:
    """Turns nested plain data into a configuration; missing keys take their defaults.

    Raises:
        ConfigError: If a key or value is wrong; names `source`.
    """
    return merge(dict(data), source, ())


def from_settings(settings: Mapping[str, Any], source: str, generators: Mapping[str, str]) -> FleetConfig:
    """As `plain_settings`, resolved; it stands on MineStudio's preset unless it names one.

    Raises:
        ConfigError: If a key or value is wrong.
    """
    return merge({PRESET: MINESTUDIO} | plain_settings(settings, source, generators), source, ())


def plain_settings(settings: Mapping[str, Any], source: str, generators: Mapping[str, str]) -> Data:
    """Turns what a Python program says into plain data. Relative paths are taken from the current folder.

    Args:
        settings: Nested plain data, or a `DictConfig`.
        source: Names it in messages.
        generators: Section -> reference to its generator.

    Raises:
        ConfigError: If it is no plain data.
    """
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{source} must be a dict or a DictConfig, got {settings!r}")
    try:
        data = OmegaConf.to_container(OmegaConf.create(dict(settings)), resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{source} is no configuration: {first_line(error)}") from error
    named = cast(Data, data)
    for section, reference in generators.items():
        put(named, f"{section}.generator", reference)
    return resolve_paths(named, Path.cwd(), {})


def read(config: str, path_map: Any = None, start: Start = start_fresh) -> Data:
    """Reads what CONFIG names, unchecked, with its paths as they are on this machine; a preset is only named.

    Args:
        config: A preset, the id of its environment or of another one, a file, or "" for none.
        path_map: What adds to the `path_map` of CONFIG.
        start: Starts the process that imports a Python module.

    Raises:
        ConfigError: If there is no such file, preset or id, or the file is no mapping.
    """
    if not config:
        return {}
    path = Path(config)
    if ENV_ID.fullmatch(config) and not path.is_file():
        tuned = preset_of_env(config)
        return {PRESET: tuned} if tuned else {"env": {"id": config}}
    if path.suffix == ".py":
        return resolve_paths(read_module(path, start), path.absolute().parent, path_map)
    if path.suffix in YAML_SUFFIXES or len(path.parts) > 1:
        return resolve_paths(read_yaml(path.read_text, path), path.absolute().parent, path_map)
    if config not in presets():
        from minefleet_env.make_env import known_ids  # Gymnasium is loaded only to say what is near.

        near = nearest(config, [*known_ids(), *presets()])
        raise ConfigError(f"{config!r} is no preset, .yaml or .py file, or id such as CartPole-v1; {near}")
    return {PRESET: config}


def name_of(config: str) -> str:
    """A short name for CONFIG, or for the reference of a generator, for run directories."""
    return re.sub(r"\.(py|ya?ml)$", "", re.split("[:/]", config)[-1])


def to_yaml(config: FleetConfig) -> str:
    """Every key with its value."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def _with_wandb_keys(data: Data) -> Data:
    """The same, with what `logger_config` says for `wandb.init` gathered in `logger_config.init`."""
    logger = data.get("logger_config")
    if not isinstance(logger, dict):
        return dict(data)
    init = {key: logger[key] for key in WANDB_KEYS if key in logger}
    rest = {key: value for key, value in logger.items() if key not in init}
    return data | {"logger_config": rest | {"init": (rest.get("init") or {}) | init}} if init else dict(data)


def _whole_lists(layer: Data, tree: Any) -> Data:
    """Completes lists of which only some entries are given, from those that the tree has."""
    whole = dict(layer)
    for name, value in layer.items():
        if isinstance(value, dict):
            node = tree.get(name) if isinstance(tree, DictConfig) else None
            whole[name] = _whole_list(name, value, node) if isinstance(node, ListConfig) else _whole_lists(value, node)
    return whole


def _whole_list(name: str, given: Data, known: ListConfig) -> list[Any]:
    entries = list(known)
    for number, entry in sorted(by_number(given).items()):
        if number > len(entries):
            raise ConfigError(f"{name}[{number}] leaves a gap: {name} has {len(entries)} entries, counted from 0")
        is_section = number < len(entries) and isinstance(entries[number], DictConfig) and isinstance(entry, dict)
        entries[number : number + 1] = [OmegaConf.merge(entries[number], entry) if is_section else entry]
    return entries


def _layered(tree: Any, layer: Any, place: str) -> Any:
    try:
        return OmegaConf.merge(tree, layer)
    except OmegaConfBaseException as error:
        key = str(error.full_key or "").partition("[")[0] or _wrong_key(tree, layer)
        value = OmegaConf.select(layer, key)
        raise ConfigError(f"{key} ({place}) must be {wanted(kind_of(key))}, got {value!r}") from error


def _wrong_key(tree: Any, layer: Any) -> str:
    """The key of a layer that does not fit, which OmegaConf does not name within lists of lists."""
    for key in sorted(all_keys(), key=lambda key: -key.count(".")):
        value = OmegaConf.select(layer, key)
        try:
            if value is not None:
                OmegaConf.update(tree.copy(), key, value)
        except OmegaConfBaseException:
            return key
    return ""


def to_object(tree: Any) -> FleetConfig:
    """The configuration in a tree of OmegaConf. Raises `ConfigError` if a value is wrong."""
    try:
        return cast(FleetConfig, OmegaConf.to_object(tree))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key}: {first_line(error)}") from error
