"""Writes `docs/config.md` from the config's dataclasses and `docs/config.yaml`; `--check` compares instead.

Type, default and meaning are those in the code. `config.yaml` adds, by key, the test that proves it and where it
differs from MineStudio, and the text above the tables.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from minefleet.config import FleetConfig

HERE = Path(__file__).parent
NOTES, PAGE = HERE / "config.yaml", HERE / "config.md"


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """One key of the configuration."""

    section: str
    """Dotted, "" at the top."""
    name: str
    type: str
    default: str
    meaning: str

    @property
    def path(self) -> str:
        """Its dotted name."""
        return f"{self.section}.{self.name}".removeprefix(".")


def main() -> None:
    """Writes the page, or compares it."""
    text = page(list(keys(FleetConfig)), yaml.safe_load(NOTES.read_text()))
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text)
    elif PAGE.read_text() != text:
        sys.exit("docs/config.md is not what the code says: run `python docs/generate_config.py`")


def keys(cls: Any, section: str = "") -> Iterator[Key]:
    """All keys of a dataclass: its own, then those of its sections."""
    meanings, types, sections = docstrings(cls), get_type_hints(cls), []
    for each in fields(cls):
        if is_dataclass(types[each.name]):
            sections.append((types[each.name], f"{section}.{each.name}".removeprefix(".")))
        else:
            text, kind = meanings.get(each.name, ("", ""))
            yield Key(section=section, name=each.name, type=kind, default=default_of(each), meaning=text)
    for kind, name in sections:
        yield from keys(kind, name)


def docstrings(cls: type) -> dict[str, tuple[str, str]]:
    """The docstring under each field, on one line, and its type as it is written."""
    (tree,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for node, below in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""
            found[node.target.id] = " ".join(str(text).split()), ast.unparse(node.annotation)
    return found


def default_of(field: Field[Any]) -> str:
    """The default as it would be written."""
    value = field.default if field.default_factory is MISSING else field.default_factory()
    return "…" if isinstance(value, list) and any(is_dataclass(entry) for entry in value) else repr(value)


def page(described: list[Key], notes: dict[str, Any]) -> str:
    """The whole page."""
    unknown = notes["keys"].keys() - {key.path for key in described}
    if unknown:
        raise SystemExit(f"docs/config.yaml has notes on {sorted(unknown)}, which are no keys")
    parts = [notes["preface"].rstrip()]
    for section in dict.fromkeys(key.section for key in described):
        parts += ["", f"## `{section}`" if section else "## At the top", ""]
        parts += ["| key | type | default | meaning | proved by | MineStudio |", "|---|---|---|---|---|---|"]
        parts += [row(key, notes["keys"].get(key.path, {})) for key in described if key.section == section]
    return "\n".join(parts) + "\n"


def row(key: Key, note: dict[str, str]) -> str:
    """One line of a table."""
    test = f"`{note['test'].removeprefix('tests/')}`" if "test" in note else ""
    cells = [f"`{key.name}`", f"`{key.type}`", f"`{key.default}`", key.meaning, test, note.get("differs", "")]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    main()
