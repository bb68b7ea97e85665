"""Packages that play over the stand-in engine; skipped where no interpreter has them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interpreters import minerl_python, minestudio_python

from . import minerl, minestudio
from .prepared import Prepared


@pytest.fixture
def minestudio_engine(tmp_path: Path) -> Iterator[Prepared]:
    """MineStudio over the stand-in engine."""
    prepared = minestudio.prepare(minestudio_python(), tmp_path / "minestudio")
    yield prepared
    prepared.end()


@pytest.fixture
def minerl_engine(tmp_path: Path) -> Iterator[Prepared]:
    """MineRL over the stand-in engine."""
    prepared = minerl.prepare(minerl_python(), tmp_path / "minerl")
    yield prepared
    prepared.end()
