"""Reads pickles of plain data. Nothing that they name is imported or called."""

import io
import pickle
import sys
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import OrderedDict
from pathlib import Path
from typing import Any

from minefleet.core.errors import ConfigError
from minefleet.policies.vpt.pickle_bomb_check import check_unfolding

MAX_OPCODE_BYTES = 2**20
"""A `.model` file has a few kilobytes."""

PLAIN: dict[tuple[str, str], type] = {
    ("collections", "OrderedDict"): OrderedDict,
    **{("builtins", kind.__name__): kind for kind in (dict, list, set, frozenset, tuple)},
}
"""Objects that are made as the pickle says."""
HARMLESS = frozenset(
    {
        ("_codecs", "encode"),
        ("argparse", "Namespace"),
        ("builtins", "object"),
        ("collections", "defaultdict"),
        ("copyreg", "_reconstructor"),
        ("types", "SimpleNamespace"),
    }
)
"""Of the standard library, what pickles of objects name without harm."""


class Unknown(dict[str, Any]):
    """Replaces an object whose class is not imported: empty."""

    def __new__(cls, *_: object, **__: object) -> "Unknown":
        """Accepts any arguments."""
        return super().__new__(cls)

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()

    def __setstate__(self, _: object) -> None:
        """Accepts any state."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        # Protocols before the third call Python's own parts by the names of Python 2.
        module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
        if (module, name) in PLAIN:
            return PLAIN[module, name]
        # Classes of the libraries that a model was trained with are expected; a part of Python is an attack.
        package = module.partition(".")[0]
        if not package or (package in sys.stdlib_module_names and (module, name) not in HARMLESS):
            raise pickle.UnpicklingError(f"it names {module}.{name}, which plain data has no use for")
        return Unknown


def read_plain(path: Path) -> Any:
    """Reads containers, numbers and texts; an object of any other class becomes an `Unknown`.

    Raises:
        ConfigError: If the file cannot be read, is no pickle, names functions of Python, or is unlikely large.
    """
    content = _read(path)
    try:
        check_unfolding(content)
        return _PlainUnpickler(io.BytesIO(content)).load()
    except Exception as error:  # A damaged pickle may fail in any way.
        reason = str(error).partition("\n")[0] or type(error).__name__
        if zipfile.is_zipfile(path):
            reason = "it is a file of weights"
        raise ConfigError(f"{path} is no description of a model: {reason}") from error


def _read(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path} is no file")
        with path.open("rb") as file:
            content = file.read(MAX_OPCODE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    if len(content) > MAX_OPCODE_BYTES:
        raise ConfigError(
            f"{path} has more than {MAX_OPCODE_BYTES} bytes: it is no description of a model; are they weights?"
        )
    return content
