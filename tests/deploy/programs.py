"""Prometheus and its tool, which Debian's package `prometheus` brings."""

import shutil

import pytest


def program(name: str) -> str:
    """The path of a program; skips the test where it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed; Debian's package prometheus brings it")
    return found
