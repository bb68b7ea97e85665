"""Everything that the pages name exists: commands, flags, keys and files; and the site can be built."""

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from minefleet.cli import COMMANDS, make_parser
from minefleet.cli.intermixed_argument_parser import CommandParser
from minefleet.config.key_docs import key_docs

ROOT = Path(__file__).parent.parent
DECISIONS = ROOT / "docs/decisions"
PAGES = {path.relative_to(ROOT).as_posix(): path for path in [*ROOT.glob("*.md"), *sorted(ROOT.glob("docs/**/*.md"))]}
KEYS = {key.path: key.type for key in key_docs()}
SECTIONS = {path[: end.start()] for path in KEYS for end in re.finditer(r"\.", path)}
BLOCK = re.compile(r"^```[a-z]*\n(.*?)^```|((?:^    .*\n)+)", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"(?<![\w/.])(?:examples|benchmarks|docs|tests)/[\w/.-]+\.(?:py|md|yaml)\b")
PICTURE = re.compile(r"!\[([^\]]*)\]\((?:docs/)?images/([\w.-]+)\)")
NO_KEYS = {"env.step", "train_config.scaling_config"}
"""A method, and a key that is refused with a word of its own."""
OVERRIDE = re.compile(r"([a-z_]+(?:\.[a-z_]+)*)=")


def blocks(text: str) -> Iterator[str]:
    """The code blocks of a page, fenced or indented."""
    return (fenced or indented for fenced, indented in BLOCK.findall(text))


def commands(text: str) -> Iterator[list[str]]:
    """The words after `minefleet` of every command in a page's blocks, but for usages, with `[...]`, and mistakes."""
    for block in blocks(text):
        lines = block.replace("\\\n", " ").splitlines()
        for line, answer in zip(lines, [*lines[1:], ""], strict=True):
            command = line.strip().removeprefix("$ ")
            if command.startswith("minefleet ") and " [" not in command and not answer.startswith("minefleet: "):
                yield shlex.split(command, comments=True)[1:]


def spans(text: str) -> Iterator[str]:
    """The code within a page's sentences and tables."""
    return (span.replace("\\|", "|") for span in SPAN.findall(BLOCK.sub("", text)))


def parser_of(*words: str) -> CommandParser:
    """The parser of a command, and of its action where that is the next word."""
    parser = make_parser()
    for word in words:
        choices = [each.choices for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
        if not choices or word not in choices[0]:
            break
        parser = choices[0][word]
    return parser


def is_key(name: str) -> bool:
    """Whether a key or a section has this name or ends in it, or the key is of a dict and this lies in there."""
    parts = name.split(".")
    above = [".".join(parts[:length]) for length in range(1, len(parts))]
    dicts = [path for path, kind in KEYS.items() if kind.startswith("dict")]
    return any(ends(path, name) for path in (*KEYS, *SECTIONS)) or any(ends(d, head) for d in dicts for head in above)


def ends(path: str, name: str) -> bool:
    return f".{path}".endswith(f".{name}")


def words_of(command: list[str]) -> list[str]:
    """With numbers where a page has letters for them."""
    return ["1" if re.fullmatch(r"[A-Z]", word) else word for word in command]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_a_block_parses(page: str) -> None:
    for command in commands(PAGES[page].read_text()):
        assert command[0] in COMMANDS, command
        try:
            parsed = make_parser().parse_args(words_of(command))
        except (argparse.ArgumentError, SystemExit) as error:
            pytest.fail(f"minefleet {shlex.join(command)}: {error}")
        overrides = [OVERRIDE.match(word) for word in getattr(parsed, "settings", [])]
        assert [key[1] for key in overrides if key and not is_key(key[1])] == [], command


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_a_sentence_exists(page: str) -> None:
    for span in spans(PAGES[page].read_text()):
        if re.match(r"minefleet [a-z]", span):
            command, *words = span.split()[1:]
            assert command in COMMANDS, span
            flags = {word.strip("[]") for word in words if word.strip("[").startswith("--")}
            assert flags <= parser_of(command, *words)._option_string_actions.keys(), span


@pytest.mark.parametrize("page", PAGES)
def test_every_key_in_a_sentence_exists(page: str) -> None:
    sections = {name.rpartition(".")[2] for name in SECTIONS}
    for span in spans(PAGES[page].read_text()):
        found = re.fullmatch(r"([a-z_]+)((?:\.[a-z_]+)+)([=:] ?.*)?", span)
        if found and found[1] in sections and Path(span).suffix not in {".safetensors", ".py", ".md"}:
            name = found[1] + found[2]
            assert is_key(name) or name in NO_KEYS, span


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    assert [name for name in FILE.findall(PAGES[page].read_text()) if not (ROOT / name).exists()] == []


def test_every_picture_is_on_a_page_with_a_text_in_its_place() -> None:
    shown = [found for path in PAGES.values() for found in PICTURE.findall(path.read_text())]
    assert {name for _, name in shown} == {path.name for path in (ROOT / "docs/images").iterdir()}
    assert all(text for text, _ in shown)


def test_the_index_of_decisions_has_all_of_them_by_their_titles() -> None:
    rows = dict(
        re.findall(r"^\| \[(\d+)\]\(\1-[a-z0-9-]+\.md\) \| (.*) \|$", (DECISIONS / "README.md").read_text(), re.M)
    )
    titles = [path.read_text().partition("\n")[0] for path in sorted(DECISIONS.glob("[0-9]*.md"))]
    assert titles == [f"# {number}: {title}" for number, title in rows.items()]


def test_migration_examples_are_those_on_the_pages() -> None:
    python, yml = ROOT / "examples/from_sample_factory.py", ROOT / "examples/from_rllib.yaml"
    assert list(blocks(PAGES["docs/from-sample-factory.md"].read_text()))[2] in python.read_text()
    assert yaml.safe_load(list(blocks(PAGES["docs/from-rllib.md"].read_text()))[1]) == yaml.safe_load(yml.read_text())


@pytest.mark.parametrize("example", ["from_sample_factory.py", "from_rllib.yaml"])
def test_migration_example_resolves(example: str) -> None:
    command = [sys.executable, "-m", "minefleet", "config", "resolve", f"examples/{example}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a warning."""
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # The theme's own news.
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def test_docs_site_loads_nothing_from_elsewhere(site: Path) -> None:
    elsewhere = re.compile(
        r"""<(?:script|img|iframe)[^>]*\ssrc=["']?(?:https?:)?//|<link[^>]*\shref=["']?(?:https?:)?//"""
    )
    assert [path.name for path in site.rglob("*.html") if elsewhere.search(path.read_text())] == []


def test_docs_site_shows_the_docstrings_of_the_extension_points(site: Path) -> None:
    assert "BaseTrainer.setup_model_and_optimizer" in (site / "api/trainers.html").read_text()
    assert "Evaluates T steps of B environments" in (site / "api/policies.html").read_text()
