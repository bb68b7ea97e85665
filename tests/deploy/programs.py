"""Programs that Debian's packages bring."""

import shutil

import pytest


def program(name: str, package: str = "prometheus") -> str:
    """The path of a program; skips the test where it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed; Debian's package {package} brings it")
    return found
