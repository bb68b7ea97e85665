"""Writes `docs/config.md` from the config's dataclasses and `docs/config.yaml`; `--check` compares instead.

Type, default and meaning are those in the code (`clients/minefleet/config`). `config.yaml` adds the text above and
below the tables, and by key the test that proves it and where it differs from MineStudio, each a table at the end.
"""

import sys
from pathlib import Path
from typing import Any

import yaml

from minefleet.config.key_docs import KeyDoc, key_docs

HERE = Path(__file__).parent
NOTES, PAGE = HERE / "config.yaml", HERE / "config.md"


def main() -> None:
    """Writes the page, or compares it."""
    text = page(list(key_docs()), yaml.safe_load(NOTES.read_text()))
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text)
    elif PAGE.read_text() != text:
        sys.exit("docs/config.md is not what the code says: run `python docs/generate_config.py`")


def page(described: list[KeyDoc], notes: dict[str, Any]) -> str:
    """The whole page."""
    unknown = notes["keys"].keys() - {key.path for key in described}
    if unknown:
        raise SystemExit(f"docs/config.yaml has notes on {sorted(unknown)}, which are no keys")
    parts = [notes["preface"].rstrip()]
    for section in dict.fromkeys(key.section for key in described):
        parts += ["", f"## `{section}`" if section else "## At the top", ""]
        parts += table("key", "type", "default", "meaning")
        parts += [
            row(f"`{key.name}`", f"`{key.type}`", f"`{key.default}`", key.meaning + " **Live.**" * key.is_live)
            for key in described
            if key.section == section
        ]
    parts += ["", notes["explanations"].rstrip()]
    for title, heads, note in (("Differences from MineStudio", "there", "differs"), ("Proofs", "test", "test")):
        noted = {key.path: notes["keys"].get(key.path, {}).get(note, "") for key in described}
        parts += ["", f"## {title}", "", *table("key", heads)]
        parts += [row(f"`{path}`", shown(text, note)) for path, text in noted.items() if text]
    return "\n".join(parts) + "\n"


def table(*heads: str) -> list[str]:
    """The first two lines of a table."""
    return [row(*heads), "|" + "---|" * len(heads)]


def shown(text: str, note: str) -> str:
    """A cell of a note: of a test its path below `tests/`, as code."""
    return f"`{text.removeprefix('tests/')}`" if note == "test" else text


def row(*cells: str) -> str:
    """One line of a table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    main()
