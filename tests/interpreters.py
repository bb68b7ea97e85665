"""Interpreters that have what the fleet's own cannot have: the packages that drive Minecraft."""

import os
import subprocess

import pytest

MINESTUDIO = "MINESTUDIO_PYTHON"
MINERL = "MINERL_PYTHON"


def minestudio_python() -> str:
    """An interpreter with MineStudio's wheel; skips the test where none is named."""
    return _named(MINESTUDIO, "minestudio", "`make minestudio` makes one")


def minerl_python() -> str:
    """An interpreter with MineRL 1.0; skips the test where none is named."""
    return _named(MINERL, "minerl", "docs/minecraft.md says how to make one")


def _named(variable: str, package: str, remedy: str) -> str:
    python = os.environ.get(variable, "")
    if not python:
        pytest.skip(f"{variable} names no interpreter with {package}; {remedy}")
    find = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    subprocess.run([python, "-c", find], check=True)
    return python
