"""Tests that an installation cannot run."""

import os
import subprocess
import sys
from pathlib import Path

from tests.interpreters import MINERL, MINESTUDIO

ROOT = Path(__file__).parents[1]


def test_skips_are_counted_with_their_reason_in_the_summary() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "tests/engine/test_packages.py"]
    environ = {key: value for key, value in os.environ.items() if key not in (MINERL, MINESTUDIO)}
    summary = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True).stdout
    assert f"skipped 6 tests: {MINESTUDIO} names no interpreter" in summary
    assert f"skipped 4 tests: {MINERL} names no interpreter" in summary
