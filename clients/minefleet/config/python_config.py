"""Configurations as Python modules with `env_generator`, `policy_generator` and `online_dict`.

The module is somebody's code and may import anything, so a child process runs it:
`python -m minefleet.config.python_config FILE`.
"""

import json
import sys
from pathlib import Path
from typing import Any

from minefleet.core.child_process_answers import ask
from minefleet.core.child_process_start import Start, start_fresh
from minefleet.core.errors import ConfigError

SETTINGS = "online_dict"
GENERATORS = {"env_generator": "env", "policy_generator": "policy"}
"""Function in the module -> section whose `generator` names it."""


def read_module(path: Path, start: Start = start_fresh) -> dict[str, Any]:
    """Reads a module's settings; its generators become references to the file.

    Raises:
        ConfigError: If there is no such file, it fails, or has neither settings nor generators.
    """
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    return ask("minefleet.config.python_config", str(path.absolute()), start=start)


def answer(path: Path) -> dict[str, Any]:
    """Returns what the child process finds in the module."""
    from minefleet.core.function_references import load_file

    module = load_file(path)
    settings = getattr(module, SETTINGS, {})
    data = _plain(settings, path)
    found = [name for name in GENERATORS if callable(getattr(module, name, None))]
    if not data and not found:
        raise ConfigError(
            f"{path} has none of {SETTINGS}, {', '.join(GENERATORS)}; what is called otherwise is named by a key: "
            f"env.generator={path.name}:NAME"
        )
    for name in found:
        section = data.setdefault(GENERATORS[name], {})
        section["generator"] = f"{path}:{name}"
    return data


def _plain(settings: Any, path: Path) -> dict[str, Any]:
    from omegaconf import DictConfig, OmegaConf

    if not isinstance(settings, dict | DictConfig):
        raise ConfigError(f"{path}: {SETTINGS} must be a dict, got a {type(settings).__name__}")
    data = OmegaConf.to_container(OmegaConf.create(settings))
    return json.loads(json.dumps(data))  # type: ignore[no-any-return]  # JSON has no types; refuses what is no data.


if __name__ == "__main__":
    from minefleet.core.child_process_answers import reply
    from minefleet.core.parent_death import die_with_launcher

    die_with_launcher()
    reply(lambda: answer(Path(sys.argv[1])))
