"""Configurations that come with the package, one YAML file each."""

from importlib import resources


def presets() -> list[str]:
    """Names of all presets."""
    entries = resources.files(__name__).iterdir()
    return sorted(entry.name.removesuffix(".yaml") for entry in entries if entry.name.endswith(".yaml"))
