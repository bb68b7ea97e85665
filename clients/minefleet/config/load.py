"""From CONFIG and overrides to one validated `FleetConfig`. Only here, and in `run.yaml`, is there OmegaConf.

CONFIG is the name of a preset, a YAML file, or a Python module (`config.module`). It stands on a preset: on the one
that it names, on MineStudio's where it has a key of theirs, or else on that of its kind of task.

    defaults ◀─ preset ◀─ CONFIG ◀─ key=value

What kind of task it is, the environment shows; until that has been made, it is taken to show no pixels.

Every mistake is a `ConfigError` that says what is wrong, where, and what is near.
"""

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, cast

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from minefleet.config.fleet import WANDB_KEYS, FleetConfig
from minefleet.config.module import read_module
from minefleet.config.paths import map_paths
from minefleet.config.train import AUTO
from minefleet.core.errors import ConfigError
from minefleet.core.schema import Schema
from minefleet.core.subprocess_call import Start, start_fresh
from minefleet.core.tree import flatten

YAML_SUFFIXES = (".yaml", ".yml")
COMMAND_LINE = "command line"
FILE_KEYS = (("env", "generator"), ("policy", "generator"), ("", "trainer_name"))
"""Keys whose value may start with a path to a Python file."""

MOVED_KEYS = {
    "env_config": "the environment is described by `env`, its processes by `rollout_config.worker_config`",
    "train_config.scaling_config": "ranks are set by train_config.num_workers and train_config.num_gpus_per_worker",
    "logger_config.id": "wandb's run is named by the run's own id, so that a resumed run goes on there",
    "logger_config.resume": "wandb's run goes on when this one does",
    "logger_config.dir": "wandb's files lie in the run directory",
    "logger_config.config": "wandb shows the run's own configuration",
}
"""Keys that others have and we do not, and what is there instead."""
PRESET = "preset"
"""Key of CONFIG that names what it stands on."""
MEMORY, PIXELS, VECTORS = "memory", "pixels", "vectors"
"""The presets of the kinds of task: any policy with memory, and others by what they see."""
MINESTUDIO = "minestudio"
MINESTUDIO_KEY = "detach_rollout_manager"
"""Has a meaning in their configurations only."""
MAKERS = (("env", "id"), ("env", "generator"), ("policy", "generator"))
"""Keys that name what is made by the others of their section."""
MAX_HINTS = 5
ENTRY = re.compile(r"(\w+)\[(\d+)\]")
"""A part of a key that names an entry of a list, as in `services.replay[1].address`."""

Data = dict[str, Any]


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
        pixels = schema is not None and any(leaf.is_pixels for leaf in flatten(schema.obs).values())
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
    data = read(config, read_overrides(overrides).get("path_map", {}), start)
    return Settings(data=data, source=config, overrides=overrides)


def merge(data: Data, source: str, overrides: Sequence[str], *, shows_pixels: bool = False) -> FleetConfig:
    """Applies overrides to plain data that came from `source`, on the preset that they stand on.

    Raises:
        ConfigError: If a key or value is wrong.
    """
    layers = [(source, _with_wandb_keys(data)), (COMMAND_LINE, _with_wandb_keys(read_overrides(overrides)))]
    named = [layer.pop(PRESET) for _, layer in layers if PRESET in layer]
    for place, layer in layers:
        check_keys(layer, place)
    base = str(named[-1]) if named else _preset_of(layers, shows_pixels=shows_pixels)
    layers = [*_bases(base, layers), *layers]
    tree: Any = OmegaConf.structured(FleetConfig)
    for place, layer in layers:
        tree = _layered(tree, OmegaConf.create(_whole_lists(layer, tree)), place)
    return _to_object(tree)


def _preset_of(layers: Sequence[tuple[str, Data]], *, shows_pixels: bool) -> str:
    """The preset to stand on where none is named."""
    if any(MINESTUDIO_KEY in layer for _, layer in layers):
        return MINESTUDIO
    sizes = [layer["policy"]["gru_size"] for _, layer in layers if "gru_size" in (layer.get("policy") or {})]
    if sizes and sizes[-1]:
        return MEMORY
    return PIXELS if shows_pixels else VECTORS


def _bases(preset: str, layers: Sequence[tuple[str, Data]]) -> list[tuple[str, Data]]:
    """A preset, and before it what that stands on; nothing of its environment or policy where another one is named."""
    named = {section for _, layer in layers for section, key in MAKERS if _get(layer, section, key)}
    values = {name: value for name, value in _read_preset(preset).items() if name not in named}
    base = values.pop(PRESET, None)
    return [*([] if base is None else _bases(base, layers)), (f"preset {preset}", values)]


def from_data(data: Mapping[str, Any], source: str) -> FleetConfig:
    """Turns nested plain data into a configuration; missing keys take their defaults.

    Raises:
        ConfigError: If a key or value is wrong; names `source`.
    """
    return merge(dict(data), source, ())


def from_settings(settings: Mapping[str, Any], source: str, generators: Mapping[str, str]) -> FleetConfig:
    """Turns what a Python program says into a configuration, which stands on MineStudio's unless it names a preset.

    Relative paths are taken from the current folder.

    Args:
        settings: Nested plain data, or a `DictConfig`.
        source: Names it in messages.
        generators: Section -> reference to its generator.

    Raises:
        ConfigError: If a key or value is wrong.
    """
    data = OmegaConf.to_container(OmegaConf.create(dict(settings)), resolve=True)
    assert isinstance(data, dict)
    named = cast(Data, data)
    for section, reference in generators.items():
        _put(named, f"{section}.generator", reference)
    _resolve_paths(named, Path.cwd(), {})
    return merge({PRESET: MINESTUDIO} | named, source, ())


def read(config: str, path_map: Any = None, start: Start = start_fresh) -> Data:
    """Reads what CONFIG names, unchecked, with its paths as they are on this machine; a preset is only named.

    Args:
        config: A preset or a file.
        path_map: What adds to the `path_map` of CONFIG.
        start: Starts the process that imports a Python module.

    Raises:
        ConfigError: If the file does not exist, or is no mapping.
    """
    path = Path(config)
    if path.suffix == ".py":
        return _resolve_paths(read_module(path, start), path.absolute().parent, path_map)
    if path.suffix in YAML_SUFFIXES or len(path.parts) > 1:
        return _resolve_paths(_read_yaml(path.read_text, path), path.absolute().parent, path_map)
    return {PRESET: config}


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
        _put(data, key, _parse_value(override, value))
    _anchor_paths(data, Path.cwd())
    return data


def name_of(config: str) -> str:
    """A short name for CONFIG, for run directories."""
    return Path(config).stem


def presets() -> list[str]:
    """Names of all presets."""
    folder = resources.files("minefleet") / "presets"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


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


def check_keys(data: Mapping[str, Any], source: str) -> None:
    """Refuses keys that the tree does not have, and sections that are none.

    Raises:
        ConfigError: Names the key in full, and the nearest one.
    """
    _check_section(data, FleetConfig, "", source)


def all_keys(cls: type = FleetConfig, prefix: str = "") -> Iterator[str]:
    """Every key in full, sections included."""
    for name, kind in _fields(cls).items():
        yield f"{prefix}{name}"
        section = _section(kind)
        if section is not None:
            yield from all_keys(section, f"{prefix}{name}.")


def _check_section(data: Any, cls: type, prefix: str, source: str) -> None:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{prefix.rstrip('.')} ({source}) must be a section of keys, got {data!r}")
    fields = _fields(cls)
    for name, value in data.items():
        if f"{prefix}{name}" in MOVED_KEYS:
            raise ConfigError(f"there is no {prefix}{name} ({source}): {MOVED_KEYS[f'{prefix}{name}']}")
        if name not in fields:
            raise ConfigError(f"unknown key {prefix}{name} ({source}); {_hint(f'{prefix}{name}')}")
        section = _section(fields[name])
        if section is not None:
            for entry in _entries(value) if section is not fields[name] else [value]:
                _check_section(entry, section, f"{prefix}{name}.", source)


def _section(kind: Any) -> type | None:
    """The section that a key of this type holds, or each entry of its list; None where it holds a value."""
    entry = typing.get_args(kind)[0] if typing.get_origin(kind) is list else kind
    return cast(type, entry) if dataclasses.is_dataclass(entry) else None


def _entries(value: Any) -> list[Any]:
    """The given entries of a list: all of them, or some by number. Keys without a number are the first one's."""
    if not isinstance(value, dict):
        return value if isinstance(value, list) else [value]
    return list(_by_number(value).values())


def _by_number(given: dict[Any, Any]) -> dict[int, Any]:
    first = {name: value for name, value in given.items() if not isinstance(name, int)}
    numbered = {name: value for name, value in given.items() if isinstance(name, int)}
    return {0: first, **numbered} if first else numbered


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
    for number, entry in sorted(_by_number(given).items()):
        if number > len(entries):
            raise ConfigError(f"{name}[{number}] leaves a gap: {name} has {len(entries)} entries, counted from 0")
        is_section = number < len(entries) and isinstance(entries[number], DictConfig) and isinstance(entry, dict)
        entries[number : number + 1] = [OmegaConf.merge(entries[number], entry) if is_section else entry]
    return entries


def _hint(key: str) -> str:
    """Names the nearest key: a similar name in the same section, else anywhere; else some of what the section has."""
    section, _, name = key.rpartition(".")
    keys = {other: other.rpartition(".") for other in all_keys()}
    siblings = [last for before, _, last in keys.values() if before == section]
    near = difflib.get_close_matches(name, siblings, 1)
    if near:
        return f"the nearest is {'.'.join(filter(None, (section, near[0])))}"
    far = difflib.get_close_matches(name, {last for *_, last in keys.values()}, 1, cutoff=0.75)
    places = [other for other, (*_, last) in keys.items() if last in far]
    if places:
        return f"the nearest is {' or '.join(places)}"
    nearest = difflib.get_close_matches(name, siblings, MAX_HINTS, cutoff=0.0)
    return f"{section or 'the top'} has {', '.join(nearest) or 'no keys'}{', ...' * (len(siblings) > len(nearest))}"


def _unknown_preset(name: str) -> str:
    known = presets()
    near = difflib.get_close_matches(name.lower(), known, 1, cutoff=0.4)
    hint = f"the nearest is {near[0]}" if near else f"there are {', '.join(known)}"
    return f"unknown preset {name!r}; {hint}. CONFIG may also be a .yaml or .py file"


def _read_preset(name: str) -> Data:
    preset = resources.files("minefleet") / "presets" / f"{name}.yaml"
    if not preset.is_file():
        raise ConfigError(_unknown_preset(name))
    return _read_yaml(preset.read_text, Path(name))


def _read_yaml(read_text: Any, path: Path) -> Data:
    try:
        data = OmegaConf.to_container(OmegaConf.create(read_text()))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {_first_line(error)}{_place(error)}") from error
    except (OmegaConfBaseException, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no configuration: {_first_line(error)}") from error
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ConfigError(f"{path} must hold keys and values, as in `seed: 1`")
    return cast(Data, data)


def _place(error: yaml.YAMLError) -> str:
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    return f" in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""


def _parse_value(override: str, text: str) -> Any:
    if not text:
        return text
    try:
        return OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))["value"]  # type: ignore[index,call-overload]
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"the value in {override!r} is no YAML: {_first_line(error)}") from error


def _put(data: Data, key: str, value: Any) -> None:
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


def _anchor_paths(data: Data, folder: Path) -> None:
    """Makes paths to Python files, interpreters and checkpoints absolute, so that they mean the same in every role."""
    for section, key in FILE_KEYS:
        place, _, name = _get(data, section, key).rpartition(":")
        if place.endswith(".py"):
            (data[section] if section else data)[key] = f"{_absolute(place, folder)}:{name}"
    _anchor_map(data, folder)
    services = data.get("services")
    security = services.get("security") if isinstance(services, dict) else None
    for key in ("certificates", "token_file"):
        if isinstance(security, dict) and security.get(key):
            security[key] = _absolute(str(security[key]), folder)
    _anchor_kwargs(data.get("policy"), folder)
    if "/" in _get(data, "env", "python"):
        data["env"]["python"] = _absolute(data["env"]["python"], folder)
    if _get(data, "train_config", "resume") not in ("", AUTO):
        data["train_config"]["resume"] = _absolute(data["train_config"]["resume"], folder)


def _resolve_paths(data: Data, folder: Path, path_map: Any) -> Data:
    """Maps paths by the data's own `path_map` and what is added to it, then anchors them."""
    own, more = data.get("path_map") or {}, path_map or {}
    if isinstance(own, dict) and isinstance(more, dict):
        _anchor_map(data, folder)
        map_paths(data, data.get("path_map", {}) | more)
    _anchor_paths(data, folder)
    return data


def _anchor_map(data: Data, folder: Path) -> None:
    """Makes the places that paths are mapped to absolute."""
    if isinstance(data.get("path_map"), dict):
        data["path_map"] = {old: _absolute(str(new), folder) for old, new in data["path_map"].items()}


def _anchor_kwargs(policy: Any, folder: Path) -> None:
    kwargs = policy.get("kwargs") if isinstance(policy, dict) else None
    if isinstance(kwargs, dict):
        for key, value in kwargs.items():
            if str(key).endswith("_path") and isinstance(value, str) and value:
                kwargs[key] = _absolute(value, folder)


def _absolute(place: str, folder: Path) -> str:
    return str((folder / Path(place).expanduser()).absolute())


def _get(data: Data, section: str, key: str) -> str:
    inner = data.get(section) if section else data
    value = inner.get(key) if isinstance(inner, dict) else None
    return value if isinstance(value, str) else ""


def _layered(tree: Any, layer: Any, place: str) -> Any:
    try:
        return OmegaConf.merge(tree, layer)
    except OmegaConfBaseException as error:
        key = str(error.full_key or "").partition("[")[0] or _wrong_key(tree, layer)
        value = OmegaConf.select(layer, key)
        raise ConfigError(f"{key} ({place}) must be {_wanted(_kind(key))}, got {value!r}") from error


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


def _to_object(tree: Any) -> FleetConfig:
    try:
        return cast(FleetConfig, OmegaConf.to_object(tree))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key}: {_first_line(error)}") from error


def _kind(key: str) -> Any:
    """The declared type of a key, or None where there is none."""
    kind: Any = FleetConfig
    for name in key.split("."):
        kind = _fields(kind).get(name) if dataclasses.is_dataclass(kind) else None
    return kind


def _wanted(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(arguments)}"
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_wanted(argument) for argument in arguments)
    if origin is list:
        return f"a list, each of it {_wanted(arguments[0])}"
    words = {int: "an integer", float: "a number", bool: "true or false", str: "text", dict: "a mapping"}
    return words.get(origin or kind, "null")


def _fields(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _first_line(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem:
        return error.problem
    return str(error).partition("\n")[0]
