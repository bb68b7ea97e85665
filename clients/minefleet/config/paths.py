"""Paths in a configuration: mapped to where the files lie on this machine, and made absolute."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minefleet.config.train import AUTO
from minefleet.config.yaml_text import MISSING, Data
from minefleet.core.errors import ConfigError

MAPPED = (
    ("policy", "kwargs", "model_path"),
    ("policy", "kwargs", "weights_path"),
    ("train_config", "save_path"),
    ("train_config", "resume"),
    ("rollout_config", "worker_config", "video_output_dir"),
    ("rollout_config", "replay_buffer_config", "database_config", "path"),
)
"""Keys of a configuration that are mapped; besides, whatever a generator loads by `load_vpt_policy`."""
FILE_KEYS = (("env", "generator"), ("policy", "generator"), ("", "trainer_name"))
"""Keys whose value may start with a path to a Python file."""


def mapped(path: str, path_map: Mapping[str, str]) -> str:
    """The path with its longest known beginning, of whole parts, replaced."""
    for old in sorted(path_map, key=len, reverse=True):
        if Path(path).is_relative_to(old):
            return str(Path(path_map[old]) / Path(path).relative_to(old))
    return path


def there(path: str, path_map: Mapping[str, str]) -> str:
    """The mapped path of what must be there.

    Raises:
        ConfigError: If it is not; says how to name another place.
    """
    found = mapped(str(path), path_map)
    if not Path(found).exists():
        raise ConfigError(f"there is no {found}; --map-path OLD=NEW names another place for paths below OLD")
    return found


def map_paths(data: dict[str, Any], path_map: Mapping[str, str]) -> None:
    """Maps the paths in a configuration's plain data, in place."""
    for *sections, key in MAPPED:
        node: Any = data
        for section in sections:
            node = node.get(section) if isinstance(node, dict) else None
        if isinstance(node, dict) and isinstance(node.get(key), str):
            node[key] = mapped(node[key], path_map)


def anchor_paths(data: Data, folder: Path) -> None:
    """Makes paths to Python files, interpreters and checkpoints absolute, so that they mean the same in every role."""
    for section, key in FILE_KEYS:
        place, _, name = text_at(data, section, key).rpartition(":")
        if place.endswith(".py"):
            (data[section] if section else data)[key] = f"{_absolute(place, folder)}:{name}"
    _anchor_map(data, folder)
    services = data.get("services")
    security = services.get("security") if isinstance(services, dict) else None
    for key in ("certificates", "token_file"):
        if isinstance(security, dict) and security.get(key):
            security[key] = _absolute(str(security[key]), folder)
    _anchor_kwargs(data.get("policy"), folder)
    if "/" in text_at(data, "env", "python"):
        data["env"]["python"] = _absolute(data["env"]["python"], folder)
    if text_at(data, "train_config", "resume") not in ("", AUTO):
        data["train_config"]["resume"] = _absolute(data["train_config"]["resume"], folder)


def resolve_paths(data: Data, folder: Path, path_map: Any) -> Data:
    """Maps paths by the data's own `path_map` and what is added to it, then anchors them."""
    own, more = data.get("path_map") or {}, path_map or {}
    if isinstance(own, dict) and isinstance(more, dict):
        _anchor_map(data, folder)
        map_paths(data, data.get("path_map", {}) | more)
    anchor_paths(data, folder)
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
    return place if place == MISSING else str((folder / Path(place).expanduser()).absolute())


def text_at(data: Data, section: str, key: str) -> str:
    """The text of a key, or of a key in a section; "" where there is none."""
    inner = data.get(section) if section else data
    value = inner.get(key) if isinstance(inner, dict) else None
    return value if isinstance(value, str) else ""
