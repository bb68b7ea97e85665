"""Another interpreter: old gym and old NumPy, in an environment that is made once and kept in pytest's cache."""

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = ("numpy==1.23.5", "gym==0.23.1")


@pytest.fixture(scope="session")
def old_python(pytestconfig: pytest.Config) -> str:
    """An interpreter with `PACKAGES` and nothing else; skips where they cannot be had."""
    cache = pytestconfig.cache
    assert cache is not None
    directory = cache.mkdir("old-gym")
    python, done = directory / "bin" / "python", directory / "done"
    if not done.exists():
        _install(directory, python)
        done.write_text("\n".join(PACKAGES))
    return str(python)


def _install(directory: Path, python: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--clear", str(directory)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--retries", "1", *PACKAGES]
    made = subprocess.run(pip, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        why = made.stderr.strip().splitlines()[-1]
        pytest.skip(f"cannot install {' and '.join(PACKAGES)}, which an index has: {why}")
