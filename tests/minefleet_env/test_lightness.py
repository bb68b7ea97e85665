"""An environment process imports little, so that it starts fast and under old interpreters."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import minefleet_env

MODULES = sorted(Path(minefleet_env.__file__).parent.glob("*.py"))
HEAVY = (
    "minefleet.config",
    "minefleet.core.errors",
    "grpc",
    "google.protobuf",
    "omegaconf",
    "torch",
    "prometheus_client",
)
BUILT_IN = {"dict", "frozenset", "list", "set", "tuple", "type"}
OURS = """
from minefleet_env.make_env import make
from minefleet_env.wrappers.wrap import DEFAULTS
make(dict(id="minefleet/Corridor-v0", generator="", kwargs={}, wrappers=DEFAULTS, batched=False))
"""


@pytest.mark.parametrize("code", ["import minefleet_env.__main__", OURS])
def test_an_environment_process_loads_nothing_of_the_fleet(code: str) -> None:
    report = f"{code}\nimport sys; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_env_module_uses_only_syntax_and_types_of_python_3_8(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    assert not [ast.unparse(node) for node in evaluated(tree) if is_newer(node)]


def test_lightness_check_finds_newer_types_only_where_they_are_evaluated() -> None:
    code = (
        "A = dict[str, int]\nB = int | None\ndef f(x: int | None) -> list[int]:\n    y: list[int] = cast(list[int], x)"
    )
    newer = [ast.unparse(node) for node in evaluated(ast.parse(code)) if is_newer(node)]
    assert newer == ["dict[str, int]", "int | None", "list[int]"]


def evaluated(tree: ast.AST) -> Iterator[ast.AST]:
    """The code that runs: all but annotations, which stay text, and imports for type checkers."""
    yield tree
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns") or (
            isinstance(tree, ast.If) and ast.unparse(tree.test) == "TYPE_CHECKING"
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from evaluated(child)


def is_newer(node: ast.AST) -> bool:
    """Whether this is a type as Python 3.9 or 3.10 writes it."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Name) and node.value.id in BUILT_IN
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return any(isinstance(side, ast.Constant) and side.value is None for side in (node.left, node.right))
    return False
