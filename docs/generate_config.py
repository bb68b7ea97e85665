"""Writes `docs/config.md` from the config's dataclasses and `docs/config.yaml`; `--check` compares instead.

Type, default and meaning are those in the code. `config.yaml` adds, by key, the test that proves it and where it
differs from MineStudio, and the text above the tables.
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
        parts += ["| key | type | default | meaning | proved by | MineStudio |", "|---|---|---|---|---|---|"]
        parts += [row(key, notes["keys"].get(key.path, {})) for key in described if key.section == section]
    return "\n".join(parts) + "\n"


def row(key: KeyDoc, note: dict[str, str]) -> str:
    """One line of a table."""
    test = f"`{note['test'].removeprefix('tests/')}`" if "test" in note else ""
    cells = [f"`{key.name}`", f"`{key.type}`", f"`{key.default}`", key.meaning, test, note.get("differs", "")]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    main()
