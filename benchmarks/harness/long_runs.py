"""Runs that take so long that a benchmark is stopped meanwhile, and goes on later."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def train(preset: str, overrides: Sequence[str], directory: Path) -> None:
    """Trains a preset in a run directory, unless it has taken all its steps; a run that was broken off goes on."""
    result = directory / "result.json"
    if result.exists() and json.loads(result.read_text())["stopped_by"] == "env_steps":
        return
    command = [sys.executable, "-m", "minefleet", "train", preset, "train_config.resume=auto", *overrides]
    subprocess.run([*command, "--run-dir", str(directory)], check=True)
