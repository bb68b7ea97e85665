"""Finds functions as environment processes do: see `minefleet_worker.generators`. What is wrong is a `ConfigError`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from minefleet.errors import ConfigError
from minefleet_worker import generators
from minefleet_worker.errors import RefusedError


def load(reference: str) -> Callable[..., object]:
    """Imports the module or file of `module:function` or `file.py:function` and returns the function.

    Raises:
        ConfigError: If the reference has no ':', or names no module, file or callable.
    """
    with refusing():
        return generators.load(reference)


def load_file(path: Path) -> ModuleType:
    """Imports a file once, with its folder on the path for its own imports.

    Raises:
        ConfigError: If there is no such file.
    """
    with refusing():
        return generators.load_file(path)


@contextmanager
def refusing() -> Iterator[None]:
    """Turns what the worker's side refuses into a `ConfigError`."""
    try:
        yield
    except RefusedError as error:
        raise ConfigError(str(error)) from error
