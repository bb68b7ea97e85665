"""`path_map`: where files lie on this machine that a configuration names as they lie on another."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
