"""Finds a function by name: `package.module:function` or `path/to/file.py:function`. Functions are never pickled."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minefleet_env.errors import RefusedError
from minefleet_env.minecraft import minestudio_config_import_stubs

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

PREFIX = "minefleet_generator_"
"""Begins the names of files whose own name is taken."""

_files: dict[Path, ModuleType] = {}
"""Every file that was imported, by its resolved path."""


def load(reference: str) -> Callable[..., Any]:
    """Imports the module or file and returns the function.

    Raises:
        RefusedError: If the reference has no ':', or names no module, file or callable.
    """
    place, _, name = reference.rpartition(":")
    if not place or not name:
        raise RefusedError(f"a generator is `module:function` or `file.py:function`, got {reference!r}")
    module = load_file(Path(place)) if place.endswith(".py") else _load_module(place, reference)
    function = getattr(module, name, None)
    if not callable(function):
        own = {key: value for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
        known = sorted(key for key, value in own.items() if callable(value) and not key.startswith("_"))
        raise RefusedError(f"{place} has no {name!r}; it has {', '.join(known) or 'none'}")
    return function  # type: ignore[no-any-return]  # A module's attributes have no type.


def load_file(path: Path) -> ModuleType:
    """Imports a file once, as Python would that begins with it: its folder comes first, and it has its own name.

    By its name the children that it spawns find its functions. Where another module has the name, it gets one made from
    its path.

    Raises:
        RefusedError: If there is no such file.
    """
    minestudio_config_import_stubs.serve()
    path = path.resolve()
    if path in _files:
        return _files[path]
    if not path.is_file():
        raise RefusedError(f"there is no file {path}")
    name = path.stem if path.stem.isidentifier() else ""
    if not name or name in sys.modules:
        name = f"{PREFIX}{zlib.crc32(str(path).encode()):08x}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RefusedError(f"{path} is no Python file")
    folder = str(path.parent)
    sys.path[:] = [folder, *(place for place in sys.path if place != folder)]
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = _files[path] = module
    spec.loader.exec_module(module)
    return module


def is_loaded_file(module: ModuleType) -> bool:
    """Whether `load_file` imports or has imported it."""
    return module in _files.values()


def _load_module(place: str, reference: str) -> ModuleType:
    here = str(Path.cwd())  # Last: a file in it shadows no library's module.
    if here not in sys.path:
        sys.path.append(here)
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise RefusedError(f"cannot import {place!r} for {reference!r}: {error}") from error
