"""Reads the meaning of every key from the docstrings of the configuration's dataclasses."""

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, get_type_hints

from minefleet.config.live_field import LIVE
from minefleet.config.root_config import FleetConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyDoc:
    """One key of the configuration."""

    section: str
    """Dotted, "" at the top."""
    name: str
    type: str
    default: str
    meaning: str
    is_live: bool
    """Whether `minefleet set` changes it while a run goes."""

    @property
    def path(self) -> str:
        """Its dotted name."""
        return f"{self.section}.{self.name}".removeprefix(".")


def key_docs(cls: Any = FleetConfig, section: str = "") -> Iterator[KeyDoc]:
    """All keys of a dataclass: its own, then those of its sections."""
    meanings, types, sections = docstrings(cls), get_type_hints(cls), []
    for each in fields(cls):
        if is_dataclass(types[each.name]):
            sections.append((types[each.name], f"{section}.{each.name}".removeprefix(".")))
        else:
            text, kind = meanings.get(each.name, ("", ""))
            yield KeyDoc(
                section=section,
                name=each.name,
                type=kind,
                default=default_of(each),
                meaning=text,
                is_live=LIVE in each.metadata,
            )
    for kind, name in sections:
        yield from key_docs(kind, name)


def docstrings(cls: type) -> dict[str, tuple[str, str]]:
    """The docstring under each field, on one line, and its type as it is written."""
    tree = _classes(cls.__module__)[cls.__name__]
    found = {}
    for node, below in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""
            found[node.target.id] = " ".join(str(text).split()), ast.unparse(node.annotation)
    return found


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """The classes of a module by name, as they are written; parsed once, since `--help` waits for it."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def default_of(field: Field[Any]) -> str:
    """The default as it would be written."""
    value = field.default if field.default_factory is MISSING else field.default_factory()
    return "…" if isinstance(value, list) and any(is_dataclass(entry) for entry in value) else repr(value)
