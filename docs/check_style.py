"""Checks the English of docstrings and headings, names, and sizes: `python docs/check_style.py`, part of `make check`.

A docstring or a heading must not open with a free relative clause ("What is stored", "Where files lie"): it names the
thing, or says what a function returns or does. No two classes of the product have one name, and no two modules but the
parts that every role has. A module has 300 lines at most, but for a reason. The words that `docs/glossary.md` rejects
stand in no name and no sentence of the product, its protos and its pages; decisions, which record what was, may have
them. A Python file that a page names is there.
"""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
OPENINGS = re.compile(r"(what|who|whom|whose|where|how|whatever|whoever|which)\b", re.IGNORECASE)
GENERATED = "clients/minefleet/v1/"
PRODUCT = ("clients/", "services/")
GLOSSARY = ROOT / "docs" / "glossary.md"
EXEMPT = ("docs/glossary.md", "docs/check_style.py", "docs/decisions/", "CHANGELOG.md", "tests/", "benchmarks/")
"""The rules themselves, records of what was, and code that may still have the words."""
SHARED_MODULES = frozenset("__init__ __main__ build errors loop metrics prometheus role service tools".split())
"""The same part of several packages."""
NAMED_FROM_OUTSIDE = ("clients/minefleet/cli/commands/", "clients/minefleet/config/")
"""Modules that have a command's name, or a key's of the configuration."""
FILE = re.compile(r"`((?:\w+/)*\w+\.py)`")
NAME_OTHER_FILES = ("docs/decisions/043", "docs/environments.md", "docs/from-minestudio.md", "docs/python.md")
"""Pages that name files of users, of MineStudio, or of the past."""
MAX_LINES = 300
MAX_FILES = 14
"""Modules at the root of a package."""
ALL_UNDER_A_LOCK = "everything that one lock guards stands in one file"
LONG_MODULES = {
    "services/minefleet_actor/loop.py": "the loop and the phases of a slot are read as one text",
    "services/minefleet_replay/engine/replay.py": ALL_UNDER_A_LOCK,
    "services/minefleet_parameters/store.py": ALL_UNDER_A_LOCK,
}
"""Modules that may be longer, each with the reason."""
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"^\d+: ")
"""Of a decision, before its title."""


def main() -> None:
    """Ends with 1 where there are faults, and prints each with its place."""
    patterns = ("*.py", "*.md", "*.proto")
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [path for path in listed.stdout.splitlines() if not path.startswith(GENERATED)]
    faults = [
        f"{path}:{line}: opens with a free relative clause: {text}"
        for path in paths
        if not path.endswith(".proto")
        for line, text in found(path)
    ]
    faults += shared_names(path for path in paths if path.startswith(PRODUCT))
    faults += shared_modules(path for path in paths if path.startswith(PRODUCT))
    faults += long_modules(path for path in paths if path.startswith(PRODUCT))
    faults += full_roots(path for path in paths if path.startswith(PRODUCT))
    faults += rejected_words(path for path in paths if not path.startswith(EXEMPT))
    faults += missing_files([path for path in paths if not path.startswith(NAME_OTHER_FILES)])
    sys.exit("\n".join(faults) or 0)


def found(path: str) -> Iterator[tuple[int, str]]:
    """Lines and texts of the docstrings or headings of a file that open with a free relative clause."""
    text = (ROOT / path).read_text()
    openings = docstrings(ast.parse(text)) if path.endswith(".py") else headings(text)
    return ((line, opening.split("\n")[0]) for line, opening in openings if OPENINGS.match(opening))


def shared_names(paths: Iterable[str]) -> Iterator[str]:
    """Faults of class names that several modules define."""
    places: dict[str, list[str]] = {}
    for path in paths:
        if path.endswith(".py"):
            for node in ast.walk(ast.parse((ROOT / path).read_text())):
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name, []).append(path)
    return (f"{', '.join(found_in)}: several classes {name}" for name, found_in in places.items() if len(found_in) > 1)


def shared_modules(paths: Iterable[str]) -> Iterator[str]:
    """Faults of names that stand for several modules or packages."""
    places: dict[str, set[str]] = {}
    for path in paths:
        if path.endswith(".py") and not path.startswith(NAMED_FROM_OUTSIDE):
            module = Path(path)
            for part in (module, module.parent):
                places.setdefault(part.stem, set()).add(str(part))
    return (
        f"{', '.join(sorted(found_in))}: several modules {name}"
        for name, found_in in places.items()
        if len(found_in) > 1 and name not in SHARED_MODULES
    )


def long_modules(paths: Iterable[str]) -> Iterator[str]:
    """Faults of modules that are too long, and of exceptions that no longer are."""
    for path in paths:
        lines = len((ROOT / path).read_text().splitlines())
        if path.endswith(".py") and (lines > MAX_LINES) != (path in LONG_MODULES):
            yield f"{path}: has {lines} lines; the limit is {MAX_LINES}, and LONG_MODULES lists what exceeds it"


def full_roots(paths: Iterable[str]) -> Iterator[str]:
    """Faults of packages with too many modules at their root."""
    roots = Counter(Path(path).parent for path in paths if path.endswith(".py") and len(Path(path).parts) == 3)
    return (
        f"{root}: has {count} modules; the limit is {MAX_FILES}" for root, count in roots.items() if count > MAX_FILES
    )


def rejected_words(paths: Iterable[str]) -> Iterator[str]:
    """Faults of words, or parts of names, that the glossary rejects."""
    rows = GLOSSARY.read_text().partition("| not | but |")[2].splitlines()
    rejected = {word for row in rows for word in re.findall("`(.+?)`", row.partition(" | ")[0])}
    for path in paths:
        text = CODE.sub(lambda code: "\n" * code[0].count("\n"), (ROOT / path).read_text())
        for line, row in enumerate(text.splitlines(), 1):
            for word in sorted(rejected.intersection(map(str.lower, WORD.findall(row)))):
                yield f"{path}:{line}: the glossary rejects '{word}': {row.strip()}"


def missing_files(paths: Sequence[str]) -> Iterator[str]:
    """Faults of files that a page names and that are not there; a page may leave the front of a path out."""
    pages, modules = (sorted(path for path in paths if path.endswith(ending)) for ending in (".md", ".py"))
    tails = {"/".join(Path(path).parts[start:]) for path in modules for start in range(8)}
    for path in pages:
        for line, row in enumerate((ROOT / path).read_text().splitlines(), 1):
            yield from (f"{path}:{line}: there is no {name}" for name in FILE.findall(row) if name not in tails)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Docstrings of modules, classes, functions and attributes, each with its line."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            before: list[ast.stmt | None] = [None, *node.body]
            for previous, statement in pairwise(before):
                documents = previous is None or isinstance(previous, (ast.Assign, ast.AnnAssign))
                if documents and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                    yield statement.lineno, str(statement.value.value)


def headings(text: str) -> Iterator[tuple[int, str]]:
    """Headings of a Markdown page, without the number of a decision, each with its line."""
    fenced = False
    for line, row in enumerate(text.splitlines(), 1):
        fenced ^= row.startswith("```")
        if row.startswith("#") and not fenced:
            yield line, NUMBER.sub("", row.lstrip("# "))


if __name__ == "__main__":
    main()
