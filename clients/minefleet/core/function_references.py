"""Finds functions as environment processes do: see `minefleet_env.function_loader`. What is wrong is a `ConfigError`.

Also finds the user's own line in an error.
"""

import linecache
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from minefleet.core.atomic_files import write_whole
from minefleet.core.errors import ConfigError
from minefleet.core.notebook_cells import CELLS, source_of
from minefleet_env import function_loader
from minefleet_env.errors import RefusedError

OURS = re.compile(r"minefleet(_(actor|env|learner|parameters|replay|runtime|serial))?(\.|$)")
"""Names of our packages and modules."""


def load(reference: str) -> Callable[..., object]:
    """Imports the module or file of `module:function` or `file.py:function` and returns the function.

    Raises:
        ConfigError: If the reference has no ':', or names no module, file or callable.
    """
    with refusing():
        return function_loader.load(reference)


def reference_of(function: Callable[..., object], folder: Path | None = None) -> str:
    """Names a function so that another process finds it: `file.py:function`, or `package.module:function`.

    Args:
        function: Defined at the top of a module, a program or, where there is a `folder`, a notebook.
        folder: Takes the source of one that was typed into a notebook.

    Raises:
        ConfigError: If it has no name of its own there, or its module has no file; says what to do.
    """
    name, module = getattr(function, "__qualname__", ""), sys.modules.get(getattr(function, "__module__", None) or "")
    if not name.isidentifier() or getattr(module, name, None) is not function:
        raise ConfigError(
            f"{name or function!r} cannot be found by file and name: define it with `def` at the top of a file"
        )
    assert module is not None
    if function_loader.is_loaded_file(module):
        raise ConfigError(
            f"{module.__file__} starts a fleet while one of its processes imports it: put that below "
            '`if __name__ == "__main__":`'
        )
    spec = module.__spec__
    if spec is not None and "." in spec.name:
        return f"{spec.name}:{name}"
    path = Path(getattr(module, "__file__", None) or "").absolute()
    cells = getattr(module, CELLS, None)
    if not path.is_file() and folder is not None and isinstance(cells, list):
        path = folder / f"notebook_{name}.py"
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, source_of(cells, name))
    if not path.is_file():
        raise ConfigError(f"{name} was typed in and lies in no file: put it into one")
    return f"{path}:{name}"


def load_file(path: Path) -> ModuleType:
    """Imports a file once, with its folder on the path for its own imports.

    Raises:
        ConfigError: If there is no such file.
    """
    with refusing():
        return function_loader.load_file(path)


@contextmanager
def refusing() -> Iterator[None]:
    """Turns what the worker's side refuses into a `ConfigError`."""
    try:
        yield
    except RefusedError as error:
        raise ConfigError(str(error)) from error


def user_line(error: BaseException) -> str:
    """The last place in the user's own files that an exception or its cause came through; "" where there is none.

    Three lines: file:line and function, the line's source, and the exception.
    """
    libraries = {Path(place) for place in sysconfig.get_paths().values()}
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        path, names = Path(frame.f_code.co_filename), frame.f_globals
        is_ours = OURS.match(names.get("__package__") or names.get("__name__") or "")
        if path.is_file() and not is_ours and libraries.isdisjoint(path.parents):
            source = linecache.getline(str(path), line).strip()
            reason = " ".join("".join(traceback.format_exception_only(error)).split())
            return f"{path}:{line}, in {frame.f_code.co_name}\n    {source}\n{reason}"
    cause = error.__cause__ or error.__context__
    return user_line(cause) if cause is not None else ""
