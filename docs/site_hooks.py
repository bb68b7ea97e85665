"""Adds to the site of `docs/`: files of the repository that its pages link to, and the decisions.

mkdocs calls these functions by their names. Links are written for the repository, where a page of `docs/` reaches
`../SECURITY.md`; on the site that file is a page of its own, below the site's root.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
OUTSIDE = ("SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/*.*")
"""Files beside `docs/` that are on the site, too."""
LINK = re.compile(r"(?<=\]\()[^)#\s:]+")
"""Targets of Markdown links, except other hosts and the page itself."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts every decision below the index of decisions."""
    decisions = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
    section = _section(config.nav or [], "Decisions")
    section += [f"decisions/{path.name}" for path in decisions]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the files from beside `docs/`."""
    for pattern in OUTSIDE:
        for path in sorted(ROOT.glob(pattern)):
            uri = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links of the repository into links of the site."""
    uri = page.file.src_uri
    source = uri if page.file.generated_by else f"docs/{uri}"

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[0]))
        return posixpath.relpath(target.removeprefix("docs/"), posixpath.dirname(uri) or ".")

    return LINK.sub(moved, markdown)


def _section(nav: list[Any], title: str) -> Any:
    """The entries of a section, however deep it lies."""
    for entry in nav:
        if isinstance(entry, dict):
            ((name, below),) = entry.items()
            found = below if name == title else _section(below, title) if isinstance(below, list) else []
            if found:
                return found
    return []
