"""Finds a function by name: `package.module:function` or `path/to/file.py:function`. Functions are never pickled."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import xxhash

from minefleet.errors import ConfigError


def load(reference: str) -> Callable[..., object]:
    """Imports the module or file and returns the function.

    Raises:
        ConfigError: If the reference has no ':', or names no module, file or callable.
    """
    place, _, name = reference.rpartition(":")
    if not place or not name:
        raise ConfigError(f"a generator is `module:function` or `file.py:function`, got {reference!r}")
    module = load_file(Path(place)) if place.endswith(".py") else _load_module(place, reference)
    function = getattr(module, name, None)
    if not callable(function):
        known = sorted(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise ConfigError(f"{place} has no function {name!r}; it has {', '.join(known) or 'none'}")
    return function  # type: ignore[no-any-return]  # A module's attributes have no type.


def load_file(path: Path) -> ModuleType:
    """Imports a file once, under a name made from its path, with its folder on the path for its own imports.

    Raises:
        ConfigError: If there is no such file.
    """
    path = path.resolve()
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    name = f"minefleet_generator_{xxhash.xxh3_64_hexdigest(str(path).encode())}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is no Python file")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _load_module(place: str, reference: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise ConfigError(f"cannot import {place!r} for the generator {reference!r}: {error}") from error
